#include "tools/lab/advise/device/measured_costs.h"

#include <limits>
#include <set>

#include "tools/lab/advise/device/cache_model.h"
#include "tools/train/statistics.h"

namespace mantissa {

std::vector<std::string> MeasuredCosts::kinds_of(const StepCalls& step,
                                                 const std::vector<std::vector<bool>>& cold) const {
  std::vector<std::string> kinds;
  for (size_t index = 0; index < step.calls.size(); ++index) {
    std::string& kind = kinds.emplace_back(step.calls[index].signature() + " ");
    for (const bool operand : cold[index]) kind += operand ? 'c' : 'w';
  }
  return kinds;
}

void MeasuredCosts::measure(const std::vector<StepCalls>& steps) {
  std::set<std::string> timed;
  for (const StepCalls& step : steps) {
    const auto cold = cold_operands(step, cache_bytes_);
    const auto kinds = kinds_of(step, cold);
    for (size_t index = 0; index < kinds.size(); ++index) {
      if (!timed.insert(kinds[index]).second) continue;
      seconds_[kinds[index]].push_back(timer_.seconds(step.calls[index], cold[index]));
    }
  }
}

std::vector<CostModel::Cost> MeasuredCosts::costs(const StepCalls& step) {
  const auto cold = cold_operands(step, cache_bytes_);
  const auto kinds = kinds_of(step, cold);
  std::vector<Cost> costs;
  for (size_t index = 0; index < kinds.size(); ++index) {
    std::vector<double>& found = seconds_[kinds[index]];
    if (found.empty()) found.push_back(timer_.seconds(step.calls[index], cold[index]));
    costs.push_back({.seconds = quantile(found, 0.5)});
  }
  return costs;
}

double MeasuredCosts::link_bandwidth() const { return std::numeric_limits<double>::infinity(); }

}  // namespace mantissa
