#include "tools/train/statistics.h"

#include <algorithm>
#include <cmath>

namespace mantissa {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr size_t kShown = 10;  // entries of a list that the text shows

std::string quantiles(const std::vector<double>& values, const char* unit) {
  return fmt::format("min {:.4g}{u}, median {:.4g}{u}, 90 % {:.4g}{u}, 99 % {:.4g}{u}, max {:.4g}{u}",
                     quantile(values, 0.0), quantile(values, 0.5), quantile(values, 0.9), quantile(values, 0.99),
                     quantile(values, 1.0), fmt::arg("u", unit));
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

void RunStatistics::add(const StepReport& report, const std::string& skip_reason) {
  if (scale_history_.empty()) scale_history_.emplace_back(report.step + 1, report.scale);
  if (report.next_scale != report.scale) scale_history_.emplace_back(report.step + 2, report.next_scale);
  if (report.applied) {
    ++applied_;
    grad_norms_.push_back(report.grad_norm);
  } else {
    skipped_.push_back(fmt::format("step {}: {}", report.step + 1, skip_reason));
  }
  step_ms_.push_back(1e3 * report.seconds);
}

std::string RunStatistics::to_text(size_t peak_memory_bytes) const {
  std::string text = fmt::format("\n  steps        {} done, {} skipped", applied_, skipped_.size());
  for (size_t index = 0; index < std::min(skipped_.size(), kShown); ++index) text += "\n    " + skipped_[index];
  if (skipped_.size() > kShown) text += fmt::format("\n    and {} more, see the metrics", skipped_.size() - kShown);
  text += "\n  loss scale  ";
  const size_t first = scale_history_.size() > kShown ? scale_history_.size() - kShown : 0;
  if (first > 0) text += " ...";
  for (size_t index = first; index < scale_history_.size(); ++index) {
    text += fmt::format(" {:g} from step {}{}", scale_history_[index].second, scale_history_[index].first,
                        index + 1 < scale_history_.size() ? "," : "");
  }
  if (!grad_norms_.empty()) text += "\n  grad norm    " + quantiles(grad_norms_, "");
  if (!step_ms_.empty()) text += "\n  step time    " + quantiles(step_ms_, " ms");
  return text + fmt::format("\n  peak memory  {:.2f} GiB (rank 0)", static_cast<double>(peak_memory_bytes) / kGib);
}

nlohmann::json RunStatistics::state() const {
  return {{"applied", applied_}, {"skipped", skipped_}, {"scale_history", scale_history_}, {"grad_norms", grad_norms_}};
}

void RunStatistics::restore(const nlohmann::json& state) {
  applied_ = state.at("applied");
  skipped_ = state.at("skipped").get<std::vector<std::string>>();
  scale_history_ = state.at("scale_history").get<std::vector<std::pair<int64_t, float>>>();
  grad_norms_ = state.at("grad_norms").get<std::vector<double>>();
}

}  // namespace mantissa
