// A TrainingRank with its optimizer.
#pragma once

#include <functional>

#include "comm/weight_hash.h"
#include "tests/comm/training_rank.h"

namespace mantissa::testing {

constexpr uint64_t kSeed = 11;
const AdamWOptions kOptions{.beta2 = 0.95f, .weight_decay = 0.1f};

struct OptimizedRank : TrainingRank {
  OptimizedRank(Communicator& communicator, const ReducerConfig& config, const AdamWOptions& options = kOptions,
                DType low = DType::kBF16, int64_t capacity_bytes = kToyCapacityBytes)
      : TrainingRank(communicator, config, low, capacity_bytes, state_alignment(options)),
        adamw(options),
        optimizer(*buckets, communicator, *backend, *stream, config.sharding, options) {}

  void step(const GradientFunction& gradient = toy_gradient, double learning_rate = 1e-2, double unscale = 1.0) {
    reduce(gradient);
    update(optimizer, adamw, learning_rate, unscale);
  }
  uint64_t hash() { return hash_weights(parameters, *backend, *stream); }
  // Of the working weights after the first `steps` steps, whose gradients are gradient(step).
  uint64_t hash_after(int steps, const std::function<GradientFunction(int step)>& gradient) {
    optimizer.initialize(kSeed);
    for (int step_number = 0; step_number < steps; ++step_number) {
      step(gradient(step_number), 1e-2 / (step_number + 1), 0.25);
    }
    return hash();
  }

  AdamWOptions adamw;
  ShardedOptimizer optimizer;
};

}  // namespace mantissa::testing
