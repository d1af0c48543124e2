#include "tools/run/metrics/run_statistics.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "core/base/host_memory.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

const double kLogWidth = std::log(1.01);
constexpr int32_t kSmallestBin = -100000;  // below that of any positive double

std::string quantiles(const LogHistogram& values, const char* unit, double scale = 1.0) {
  const auto at = [&](double q) { return scale * values.quantile(q); };
  return fmt::format("min {:.4g}{u}, median {:.4g}{u}, 90 % {:.4g}{u}, 99 % {:.4g}{u}, max {:.4g}{u}", at(0.0), at(0.5),
                     at(0.9), at(0.99), at(1.0), fmt::arg("u", unit));
}

template <typename T>
void remember(std::deque<T>& newest, T value) {
  newest.push_back(std::move(value));
  if (newest.size() > RunStatistics::kRemembered) newest.pop_front();
}

}  // namespace

void LogHistogram::add(double value) {
  const bool countable = std::isfinite(value) && value > 0.0;
  ++bins_[countable ? static_cast<int32_t>(std::floor(std::log(value) / kLogWidth)) : kSmallestBin];
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

void to_json(nlohmann::json& json, const LogHistogram& histogram) {
  json = {{"bins", histogram.bins_}, {"count", histogram.count_}, {"min", histogram.min_}, {"max", histogram.max_}};
}

void from_json(const nlohmann::json& json, LogHistogram& histogram) {
  json.at("bins").get_to(histogram.bins_);
  json.at("count").get_to(histogram.count_);
  json.at("min").get_to(histogram.min_);
  json.at("max").get_to(histogram.max_);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

void RunStatistics::add(const StepReport& report, const std::string& skip_reason) {
  if (newest_scales_.empty()) remember(newest_scales_, {report.step + 1, report.scale});
  if (report.next_scale != report.scale) {
    remember(newest_scales_, {report.step + 2, report.next_scale});
    ++scale_changes_;
  }
  if (report.applied) {
    ++applied_;
    grad_norms_.add(report.grad_norm);
  } else {
    ++skipped_;
    remember(newest_skips_, fmt::format("step {}: {}", report.step + 1, skip_reason));
  }
  step_ms_.add(1e3 * report.seconds);
}

std::string RunStatistics::to_text(size_t peak_memory_bytes, const SpeedContext& speed) const {
  std::string text = fmt::format("\n  steps        {} done, {} skipped", applied_, skipped_);
  const int64_t older = skipped_ - static_cast<int64_t>(newest_skips_.size());
  if (older > 0) text += fmt::format(", the last {} of them:", newest_skips_.size());
  for (const std::string& skip : newest_skips_) text += "\n    " + skip;
  const bool has_scale = scale_changes_ > 0 || (!newest_scales_.empty() && newest_scales_.back().second != 1.0f);
  if (has_scale) text += fmt::format("\n  loss scale   {}:", counted(scale_changes_, "change"));
  if (scale_changes_ >= static_cast<int64_t>(kRemembered)) text += " ...,";
  for (size_t index = 0; has_scale && index < newest_scales_.size(); ++index) {
    text += fmt::format(" {:g} from step {}{}", newest_scales_[index].second, newest_scales_[index].first,
                        index + 1 < newest_scales_.size() ? "," : "");
  }
  if (grad_norms_.count() > 0) text += "\n  grad norm    " + quantiles(grad_norms_, "");
  if (step_ms_.count() > 0) {
    const bool is_long = step_ms_.quantile(1.0) >= 1e4;
    text += "\n  step time    " + (is_long ? quantiles(step_ms_, " s", 1e-3) : quantiles(step_ms_, " ms"));
    text += "\n  speed        " + speed.to_text(1e-3 * step_ms_.quantile(0.5)) + " (the median step)";
  }
  return text + fmt::format("\n  peak memory  {:.1f} MiB (all that rank 0 held)",
                            1024.0 * static_cast<double>(peak_memory_bytes) / kGib);
}

void to_json(nlohmann::json& json, const RunStatistics& statistics) {
  json = {{"applied", statistics.applied_},
          {"skipped", statistics.skipped_},
          {"scale_changes", statistics.scale_changes_},
          {"newest_skips", statistics.newest_skips_},
          {"newest_scales", statistics.newest_scales_},
          {"grad_norms", statistics.grad_norms_}};
}

void from_json(const nlohmann::json& json, RunStatistics& statistics) {
  json.at("applied").get_to(statistics.applied_);
  json.at("skipped").get_to(statistics.skipped_);
  json.at("scale_changes").get_to(statistics.scale_changes_);
  json.at("newest_skips").get_to(statistics.newest_skips_);
  json.at("newest_scales").get_to(statistics.newest_scales_);
  json.at("grad_norms").get_to(statistics.grad_norms_);
}

}  // namespace mantissa
