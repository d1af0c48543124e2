// A forward and backward pass of a model, for tests that compare losses and gradients.
#pragma once

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "tests/testing/tape_host.h"

namespace mantissa::testing {

// A model with its parameters, not yet bound to memory.
struct TestModel {
  explicit TestModel(const ModelConfig& config)
      : softcap(config.logit_softcap), model(create_model(config, parameters)) {}
  float softcap;
  ParameterSet parameters;
  std::unique_ptr<Model> model;
};

struct MicroBatch {
  std::vector<int32_t> tokens, targets;
  int64_t sequence_length = 0;
};

using Gradients = std::map<std::string, std::vector<float>>;

struct PassResult {
  std::vector<float> logits;
  double loss_sum = 0.0;  // over targets that are not ignored, in double
};

inline int64_t counted_targets(const MicroBatch& batch) {
  int64_t count = 0;
  for (const int32_t target : batch.targets) count += target != kIgnoreIndex;
  return count;
}

// Gradients of seed * loss_sum. They accumulate until forget_gradients(). An evaluation tape computes none.
inline PassResult run_pass(TapeHost& host, TestModel& test, const MicroBatch& batch, const PrecisionPolicy& policy,
                           float seed, TapeOptions options = {}) {
  const auto tape = host.tape(policy, std::move(options), seed);
  Var logits = test.model->logits(*tape, host.tensor(batch.tokens), batch.sequence_length);
  PassResult result;
  result.logits = host.values(logits.value);
  const LossOutput loss = cross_entropy(*tape, std::move(logits), host.tensor(batch.targets), test.softcap);
  const std::vector<float> losses = host.values(loss.losses);
  result.loss_sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  if (tape->training()) tape->backward(loss.sum);
  return result;
}

inline Gradients gradients_of(TapeHost& host, const ParameterSet& parameters) {
  Gradients gradients;
  for (int i = 0; i < parameters.size(); ++i) {
    if (parameters[i].is_trainable) gradients[parameters[i].name] = host.values(parameters[i].gradient);
  }
  return gradients;
}

// All gradients in one list, in order of their names.
inline std::vector<float> flattened(const Gradients& gradients) {
  std::vector<float> all;
  for (const auto& [name, values] : gradients) all.insert(all.end(), values.begin(), values.end());
  return all;
}

}  // namespace mantissa::testing
