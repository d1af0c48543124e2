// DataParallel: a set of parameters, the exchange of its gradients and its AdamW, for training loops of one's own
// (examples/own_loop). The program's loop uses the parts below it (ShardedState, VerdictReduction), and never waits.
//
//   optimizer.begin();                                            // before the backward pass
//   ... optimizer.ready(parameter);                               // from the tape's hook gradient_ready
//   const Gradients found = optimizer.unscale(scaler.unscale(), loss);
//   if (scaler.step(found.outcome)) optimizer.step(rate, clip_factor(found.norm, 1.0));
//   scaler.update();
//
// Several of them share a scaler: join() their gradients, and step all or none.
#pragma once

#include "comm/sharded_state.h"
#include "comm/verdict_reduction.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa {

// Summed gradients, the same on every rank.
struct Gradients {
  StepOutcome outcome = StepOutcome::kClean;
  double norm = 0.0;      // unscaled, before clipping
  double loss_sum = 0.0;  // over the tokens of all ranks, in nats
};

// Gradients of two sets of parameters under the same loss: the norm of both together, and the outcome that is worse.
Gradients join(const Gradients& a, const Gradients& b);

// How DataParallel updates weights and sends gradients.
struct DataParallelOptions {
  AdamWOptions adamw{};
  DType wire = DType::kBF16;  // of gradients between ranks
};

class DataParallel {
 public:
  // Binds weights and gradients, and sets initial weights, a function of adamw.seed and the parameters' names. All else
  // passed by reference must outlive the object. ConfigError for options out of range. Collective.
  DataParallel(ParameterSet& parameters, Communicator& communicator, Backend& backend, Stream& stream,
               const DataParallelOptions& options);

  void begin();  // opens a step, before its first backward pass: the next gradients replace the old ones
  // The gradient of a parameter is complete on this rank; starts its exchange. Parameters of other sets are ignored.
  void ready(const Parameter& parameter);
  // Completes the exchange. `factor`: GradScaler::unscale(), by which gradients count. loss (1) fp32, on the device: of
  // this rank, summed over its tokens; if it is not finite, that is the outcome. Blocks; collective.
  Gradients unscale(float factor, const Tensor& loss);
  // Updates the weights by the gradients, which unscale() has found clean, times `clip`. Collective.
  void step(double learning_rate, double clip = 1.0);

 private:
  AdamWOptions options_;
  Backend& backend_;
  Stream& stream_;
  ParameterSet& parameters_;
  ShardedState state_;
  VerdictReduction verdict_;
  Tensor control_;  // u8 of one UpdateControl
  float unscale_ = 1.0f;
};

}  // namespace mantissa
