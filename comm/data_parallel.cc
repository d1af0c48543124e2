#include "comm/data_parallel.h"

#include <cmath>
#include <limits>

namespace mantissa {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

ShardedStateOptions state_options(const ParameterSet& parameters, Communicator& communicator,
                                  const DataParallelOptions& options) {
  validate(options.adamw);
  return {.layout = BucketLayout(parameters, communicator.size(), BucketLayout::kDefaultCapacityBytes,
                                 state_alignment(options.adamw)),
          .sent = {.communicator = &communicator, .gradients = true, .weights = true},
          .reduction = {.wire = options.wire},
          .adamw = options.adamw};
}

}  // namespace

Gradients join(const Gradients& a, const Gradients& b) {
  return {.outcome = std::max(a.outcome, b.outcome), .norm = std::hypot(a.norm, b.norm), .loss_sum = a.loss_sum};
}

DataParallel::DataParallel(ParameterSet& parameters, Communicator& communicator, Backend& backend, Stream& stream,
                           const DataParallelOptions& options)
    : options_(options.adamw),
      backend_(backend),
      stream_(stream),
      parameters_(parameters),
      state_(parameters, state_options(parameters, communicator, options), communicator, backend, stream),
      verdict_(communicator, backend, stream),
      control_(backend.make_record<UpdateControl>("update control")) {
  state_.optimizer.initialize(options_.seed);
}

void DataParallel::begin() {
  parameters_.forget_gradients();
  state_.reducer.begin();
}

void DataParallel::ready(const Parameter& parameter) {
  const bool is_own = parameter.index < parameters_.size() && &parameters_[parameter.index] == &parameter;
  if (is_own) state_.reducer.ready(parameter);
  state_.reducer.progress();
}

Gradients DataParallel::unscale(float factor, const Tensor& loss) {
  state_.reducer.finish();
  unscale_ = factor;
  verdict_.plan({.unscale = factor, .clip_threshold = kNoLimit});
  verdict_.decide(loss, state_.reducer, state_.optimizer.faults());
  const UpdateDecision decision = verdict_.read_decision();
  // A step that is not applied holds later steps back, for loops ahead of the device. This loop has waited.
  if (!decision.applied()) verdict_.release_hold();
  return {.outcome = decision.outcome, .norm = decision.grad_norm, .loss_sum = decision.verdict.loss_sum};
}

void DataParallel::step(double learning_rate, double clip) {
  const UpdatePlan plan = plan_update(options_, state_.optimizer.applied_steps(), unscale_, kNoLimit, learning_rate);
  UpdateDecision clean;
  clean.clip_factor = clip;
  const UpdateControl control = control_of(clean, plan);
  backend_.upload(&control, control_, stream_);
  state_.optimizer.step(state_.reducer, control_);
  state_.optimizer.await_weights();  // a loop of its own may read them anywhere
  state_.optimizer.count_applied_step();
}

}  // namespace mantissa
