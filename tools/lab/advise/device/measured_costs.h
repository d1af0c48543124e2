// MeasuredCosts: what calls cost on a device that is there: each distinct call is timed by itself.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/lab/advise/device/kernel_timer.h"
#include "tools/lab/advise/prediction.h"

namespace mantissa {

class MeasuredCosts final : public CostModel {
 public:
  // Both must outlive the object. `cache_bytes`: see cold_operands().
  MeasuredCosts(Backend& backend, Stream& stream, double cache_bytes)
      : timer_(backend, stream, cache_bytes), cache_bytes_(cache_bytes) {}

  // Times every distinct call of the steps once more. Calls are of one kind if they have one signature() and the same
  // operands are cold.
  void measure(const std::vector<StepCalls>& steps);

  // The median of a call's timings; times what was not timed yet.
  std::vector<Cost> costs(const StepCalls& step) override;
  double link_bandwidth() const override;

 private:
  // The kind of each call.
  std::vector<std::string> kinds_of(const StepCalls& step, const std::vector<std::vector<bool>>& cold) const;

  KernelTimer timer_;
  const double cache_bytes_;
  std::map<std::string, std::vector<double>> seconds_;  // of a kind, all timings
};

}  // namespace mantissa
