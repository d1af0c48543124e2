#include "tools/train/quantiles.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace mantissa {
namespace {

const double kLogWidth = std::log(1.01);
constexpr int32_t kSmallest = -100000;  // below any positive double

}  // namespace

void LogHistogram::add(double value) {
  const bool countable = std::isfinite(value) && value > 0.0;
  ++bins_[countable ? static_cast<int32_t>(std::floor(std::log(value) / kLogWidth)) : kSmallest];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  ++count_;
}

double LogHistogram::quantile(double q) const {
  if (count_ == 0) return std::nan("");
  const auto rank = static_cast<int64_t>(std::llround(q * static_cast<double>(count_ - 1)));
  if (rank == 0) return min_;
  if (rank == count_ - 1) return max_;
  int64_t seen = 0;
  for (const auto& [bin, count] : bins_) {
    seen += count;
    if (seen > rank) return std::clamp(std::exp((bin + 0.5) * kLogWidth), min_, max_);
  }
  return max_;
}

nlohmann::json LogHistogram::state() const {
  return {{"bins", bins_}, {"count", count_}, {"min", min_}, {"max", max_}};
}

void LogHistogram::restore(const nlohmann::json& state) {
  bins_ = state.at("bins").get<std::map<int32_t, int64_t>>();
  count_ = state.at("count");
  min_ = state.at("min");
  max_ = state.at("max");
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace mantissa
