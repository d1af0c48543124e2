#include "tools/lab/experiment/step_walk.h"

#include "core/backend/decorators.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/train_step.h"

namespace mantissa {

double StepCalls::sent() const {
  double sum = 0.0;
  for (const auto& [phase, bytes] : sent_bytes) sum += bytes;
  return sum;
}

StepCalls walk_calls(const Config& config, int ranks, Fp8GemmSupport support, Backend* packing) {
  StepCalls found;
  auto owned = std::make_unique<StepProfiler>(ProfilerOptions{.warm_up_steps = 1, .traced_steps = 0});
  StepProfiler& profiler = *owned;
  auto backend = create_recording_backend(
      [&](KernelCall call) { found.calls.push_back(std::move(call)); },
      [&]() -> std::string_view { return profiler.recording() ? profiler.phase() : ""; }, packing, support);
  DryRun dry(config, ranks, std::move(backend), std::move(owned));
  TrainStep step(dry.session());
  step.calibrate();
  step.run();  // creates what later steps reuse: copies of weights, packed operands
  step.run();
  for (const OpTime& row : profiler.finish().rows()) {
    const bool sends = row.work.bytes > 0.0 && (row.op == "all_to_all" || row.op == "all_gather");
    if (sends) found.sent_bytes[row.phase] += row.work.bytes;
  }
  return found;
}

}  // namespace mantissa
