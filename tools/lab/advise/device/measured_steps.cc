#include "tools/lab/advise/device/measured_steps.h"

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr int64_t kManySteps = 1'000'000;
constexpr double kSmallRate = 1e-4;  // which any model bears from its first step on

Config measured(Config config) {
  config.train.steps = kManySteps;
  config.train.eval_interval = 0;
  config.train.sample_tokens = 0;
  config.optimizer.schedule = {.kind = ScheduleKind::kConstant, .peak = kSmallRate, .total_steps = kManySteps};
  config.checkpoint.resume = "none";
  config.probe.enabled = false;
  config.cuda.graph = false;
  config.profile = true;
  return config;
}

}  // namespace

MeasuredSteps::MeasuredSteps(const Config& config, Communicator& communicator)
    : config_(measured(config)),
      session_(std::make_unique<Session>(config_, communicator, SessionParts{.batches = random_batches})),
      step_(std::make_unique<TrainStep>(*session_)) {
  step_->calibrate();
  // Neither timed nor profiled: they build kernels and take pages.
  for (int warm_up = 0; warm_up < session_->profiler->options().warm_up_steps; ++warm_up) step_->run();
  step_->finish();
}

std::vector<double> MeasuredSteps::run(int steps) {
  std::vector<double> seconds;
  const auto take = [&](const std::vector<StepReport>& reports) {
    for (const StepReport& report : reports) {
      if (!report.applied) {
        throw FaultError(fmt::format("step {} was skipped, which takes another time than the others: {}",
                                     report.step + 1, report.skip_reason(session_->runtime.parameters)));
      }
      seconds.push_back(report.seconds);
    }
  };
  for (int index = 0; index < steps; ++index) take(step_->run());
  take(step_->finish());
  return seconds;
}

const OpTimes& MeasuredSteps::op_times() { return session_->profiler->finish(); }

}  // namespace mantissa
