#include "tools/train/statistics.h"

#include <nlohmann/json.hpp>

namespace mantissa {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

std::string quantiles(const LogHistogram& values, const char* unit) {
  return fmt::format("min {:.4g}{u}, median {:.4g}{u}, 90 % {:.4g}{u}, 99 % {:.4g}{u}, max {:.4g}{u}",
                     values.quantile(0.0), values.quantile(0.5), values.quantile(0.9), values.quantile(0.99),
                     values.quantile(1.0), fmt::arg("u", unit));
}

template <typename T>
void remember(std::deque<T>& newest, T value) {
  newest.push_back(std::move(value));
  if (newest.size() > RunStatistics::kRemembered) newest.pop_front();
}

}  // namespace

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
  text += fmt::format("\n  loss scale   {} changes:", scale_changes_);
  if (scale_changes_ >= static_cast<int64_t>(kRemembered)) text += " ...,";
  for (size_t index = 0; index < newest_scales_.size(); ++index) {
    text += fmt::format(" {:g} from step {}{}", newest_scales_[index].second, newest_scales_[index].first,
                        index + 1 < newest_scales_.size() ? "," : "");
  }
  if (grad_norms_.count() > 0) text += "\n  grad norm    " + quantiles(grad_norms_, "");
  if (step_ms_.count() > 0) {
    text += "\n  step time    " + quantiles(step_ms_, " ms");
    text += "\n  speed        " + speed.to_text(1e-3 * step_ms_.quantile(0.5)) + " (the median step)";
  }
  return text + fmt::format("\n  peak memory  {:.2f} GiB (rank 0)", static_cast<double>(peak_memory_bytes) / kGib);
}

nlohmann::json RunStatistics::state() const {
  return {{"applied", applied_},
          {"skipped", skipped_},
          {"scale_changes", scale_changes_},
          {"newest_skips", newest_skips_},
          {"newest_scales", newest_scales_},
          {"grad_norms", grad_norms_.state()}};
}

void RunStatistics::restore(const nlohmann::json& state) {
  applied_ = state.at("applied");
  skipped_ = state.at("skipped");
  scale_changes_ = state.at("scale_changes");
  newest_skips_ = state.at("newest_skips").get<std::deque<std::string>>();
  newest_scales_ = state.at("newest_scales").get<std::deque<std::pair<int64_t, float>>>();
  grad_norms_.restore(state.at("grad_norms"));
}

}  // namespace mantissa
