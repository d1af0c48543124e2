#include "tools/lab/analyze/sensitivity/passes.h"

#include "tools/lab/analyze/sensitivity/shard.h"
#include "tools/train/dry_run.h"

namespace mantissa {
namespace {

double rate_at(const Session& session) {
  const ScheduleOptions& schedule = session.config.optimizer.schedule;
  const double rate = learning_rate(schedule, session.optimizer.applied_steps());
  return rate > 0.0 ? rate : schedule.peak;
}

}  // namespace

LoweredPasses::LoweredPasses(Session& session)
    : session_(session), work_(session), point_(session), learning_rate_(rate_at(session)) {}

void LoweredPasses::make_room(const Config& config) {
  ModelRuntime& runtime = session_.runtime;
  const size_t bytes = training_arena_bytes(config, runtime.backend->fp8_gemm_support());
  if (bytes <= runtime.arena->capacity_bytes()) return;
  runtime.arena.reset();  // before another takes its place: a device may not have room for both
  runtime.arena = std::make_unique<Arena>(runtime.backend->reserve(bytes));
}

void LoweredPasses::load(int64_t step) {
  step_ = step;
  work_.load(step);
  tokens_ = work_.count_global_tokens();
}

double LoweredPasses::run(const PrecisionPolicy* policy, float loss_scale, ProductObserver* observer) {
  work_.set_loss_gradient(static_cast<float>(static_cast<double>(loss_scale) / static_cast<double>(tokens_)));
  work_.run({.observer = observer, .policy = policy});
  return mean_of(sum_of_losses());
}

double LoweredPasses::loss(const PrecisionPolicy* policy) { return mean_of(work_.loss_again(policy)); }

double LoweredPasses::sum_of_losses() {
  std::vector<float> losses(static_cast<size_t>(work_.losses().numel()));
  session_.runtime.backend->download(work_.losses(), losses.data(), *session_.runtime.stream);
  double mine = 0.0;
  for (const float loss : losses) mine += loss;
  return mine;
}

double LoweredPasses::mean_of(double sum) {
  return sum_over_ranks({sum}, session_.communicator)[0] / static_cast<double>(tokens_);
}

bool LoweredPasses::update(float loss_scale) {
  UpdatePlan plan = plan_update(session_.config.optimizer.adamw, session_.optimizer.applied_steps(),
                                1.0 / static_cast<double>(loss_scale), session_.clipper.threshold(), learning_rate_);
  plan.step = step_;
  VerdictReduction& verdicts = session_.verdicts;
  verdicts.plan(plan);
  verdicts.decide(work_.losses(), session_.reducer);
  session_.optimizer.step(session_.reducer, verdicts.control());
  const bool applied = verdicts.read_decision().applied();
  if (!applied) verdicts.release_hold();
  return applied;
}

}  // namespace mantissa
