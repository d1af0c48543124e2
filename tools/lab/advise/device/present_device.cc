#include "tools/lab/advise/device/present_device.h"

#include <algorithm>
#include <cmath>

#include "tools/lab/advise/device/cache_model.h"
#include "tools/lab/advise/device/measured_costs.h"
#include "tools/lab/advise/device/measured_steps.h"
#include "tools/train/launch.h"
#include "tools/train/threads.h"

namespace mantissa {
namespace {

constexpr double kRoundSeconds = 1.0;  // of steps
constexpr double kMostSteps = 50;      // in a round

}  // namespace

PresentAdvice advise_present_device(const std::string& model, const Config& config,
                                    const std::vector<Candidate>& candidates, int rounds) {
  const auto communicator = start_communicator("local", config.device);
  set_up_threads(config, *communicator);
  const auto configured =
      std::find_if(candidates.begin(), candidates.end(), [](const Candidate& one) { return one.is_configured; });
  MeasuredSteps steps(config, *communicator);
  Backend& backend = steps.backend();
  MeasuredCosts costs(backend, steps.stream(), last_level_cache_bytes());
  const bool packs = config.train.keeps_packed_weights(1) && backend.device().kind == Device::Kind::kCpu;
  const Target target{.title = backend.describe(),
                      .costs = &costs,
                      .fp8_gemm_support = backend.fp8_gemm_support(),
                      .packing = packs ? &backend : nullptr};
  const StepCalls calls = walk_calls(config, 1, target.fp8_gemm_support, target.packing);
  const double first = steps.run(1).front();
  const auto steps_a_round = static_cast<int>(std::clamp(kRoundSeconds / first, 1.0, kMostSteps));
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    costs.measure({calls});
    for (const double one : steps.run(steps_a_round)) seconds.push_back(one);
  }
  const Prediction prediction = predict(calls, costs);
  PresentAdvice found{.advice = {}, .comparison = compare(configured->name, prediction, seconds, steps.op_times())};
  found.advice = advise(model, config, candidates, 1, target);
  return found;
}

}  // namespace mantissa
