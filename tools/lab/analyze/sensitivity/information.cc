#include "tools/lab/analyze/sensitivity/information.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace mantissa {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool has_nan(std::span<const float> values) {
  return std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

// Of each value its class: by the rank of the first of those that equal it.
std::vector<int> classes(std::span<const float> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<int> found(values.size());
  int current = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (rank == 0 || values[order[rank]] != values[order[rank - 1]]) {
      current = static_cast<int>(rank * kInformationBins / order.size());
    }
    found[order[rank]] = current;
  }
  return found;
}

int64_t occupied(std::span<const int64_t> counts) {
  return std::count_if(counts.begin(), counts.end(), [](int64_t count) { return count > 0; });
}

}  // namespace

double mutual_information(std::span<const float> x, std::span<const float> y) {
  if (x.size() < 2) return 0.0;
  if (has_nan(x) || has_nan(y)) return kNaN;
  constexpr auto kBins = static_cast<size_t>(kInformationBins);
  const std::vector<int> of_x = classes(x), of_y = classes(y);
  std::vector<int64_t> joint(kBins * kBins), alone_x(kBins), alone_y(kBins);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto a = static_cast<size_t>(of_x[i]), b = static_cast<size_t>(of_y[i]);
    ++joint[a * kBins + b];
    ++alone_x[a];
    ++alone_y[b];
  }
  const auto n = static_cast<double>(x.size());
  double bits = 0.0;
  for (size_t a = 0; a < kBins; ++a) {
    for (size_t b = 0; b < kBins; ++b) {
      const auto both = static_cast<double>(joint[a * kBins + b]);
      if (both == 0.0) continue;
      bits += both / n * std::log2(both * n / (static_cast<double>(alone_x[a]) * static_cast<double>(alone_y[b])));
    }
  }
  const auto cells = static_cast<double>(occupied(joint) - occupied(alone_x) - occupied(alone_y) + 1);
  return std::max(0.0, bits - cells / (2.0 * n * std::log(2.0)));
}

double entropy_in_deviations(std::span<const float> x) {
  const bool is_finite = std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
  if (x.size() < 2 || !is_finite) return kNaN;
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0.0;
  for (const float value : x) squares += (value - mean) * (value - mean);
  const double width = std::sqrt(squares / n) / kBinsPerDeviation;
  if (width == 0.0) return kNaN;
  std::map<int64_t, int64_t> counts;
  for (const float value : x) ++counts[static_cast<int64_t>(std::floor((value - mean) / width))];
  double bits = static_cast<double>(counts.size() - 1) / (2.0 * n * std::log(2.0)) - std::log2(kBinsPerDeviation);
  for (const auto& [bin, count] : counts) {
    const double share = static_cast<double>(count) / n;
    bits -= share * std::log2(share);
  }
  return bits;
}

}  // namespace mantissa
