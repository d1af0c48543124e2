// Some steps of AdamW with a trainer's components, for tests that compare losses with PyTorch's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "amp/autocast_policy.h"
#include "comm/local/local_communicator.h"
#include "comm/sharded_optimizer.h"
#include "comm/staged/staged_communicator.h"
#include "comm/verdict_reduction.h"
#include "core/base/thread_team.h"
#include "core/optim/clip.h"
#include "tests/models/training_pass.h"

namespace mantissa::testing {

struct CurveTask {
  ModelConfig model;
  std::function<std::vector<float>(const Parameter& parameter)> weight;  // initial values
  std::function<MicroBatch(int step)> batch;
  std::vector<float> learning_rates;  // one a step
  double clip_norm = 1.0;
};

struct Curve {
  std::vector<float> losses, norms;  // before each step; before clipping
};

// AdamW with betas 0.9 and 0.95, epsilon 1e-8, and a weight decay of 0.1 for matrices.
inline Curve train_curve(const CurveTask& task, DType dtype, WorkingWeights weights, float loss_scale = 1.0f) {
  set_threads(1);  // tiny kernels
  TapeHost host;
  TestModel test(task.model);
  const AutocastPolicy policy({{.format = dtype}});
  assign_working_dtypes(test.parameters, policy, weights);
  LocalGroup group(1);
  const auto communicator =
      create_staged_communicator(group.rank(0), host.backend());  // for a device with its own memory
  constexpr int64_t kBucketBytes = 16 << 10;                      // several buckets
  FlatBuckets buckets(test.parameters, BucketLayout(test.parameters, group.size(), kBucketBytes), host.backend());
  GradientReducer reducer(buckets, *communicator, host.backend(), host.stream(), {.wire = DType::kF32});
  VerdictReduction verdicts(*communicator, host.backend(), host.stream());
  const AdamWOptions adamw{.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  ShardedOptimizer optimizer(buckets, *communicator, host.backend(), host.stream(), Sharding::kSharded, adamw);
  const GradientClipper clipper({.kind = ClipOptions::Kind::kFixed, .max_norm = task.clip_norm});

  const Tensor losses = host.backend().make_tensor(DType::kF32, {1}, "losses");
  optimizer.begin_load();
  for (int i = 0; i < test.parameters.size(); ++i) {
    const std::vector<float> initial = task.weight(test.parameters[i]);
    optimizer.load({.parameter = i, .begin = 0, .weights = initial});
  }
  optimizer.end_load(0);

  Curve curve;
  for (int step = 0; step < std::ssize(task.learning_rates); ++step) {
    const MicroBatch batch = task.batch(step);
    const int64_t count = counted_targets(batch);
    test.parameters.forget_gradients();
    reducer.begin();
    TapeOptions options;
    options.gradient_ready = [&](Parameter& parameter) { reducer.ready(parameter); };
    options.between_nodes = [&] { reducer.progress(); };
    const float seed = loss_scale / static_cast<float>(count);
    const double loss_sum = run_pass(host, test, batch, policy, seed, std::move(options)).loss_sum;
    reducer.finish();
    const float loss = static_cast<float>(loss_sum);
    host.backend().upload(&loss, losses, host.stream());
    verdicts.plan(plan_update(adamw, step, 1.0 / static_cast<double>(loss_scale), clipper.threshold(),
                              task.learning_rates.at(static_cast<size_t>(step))));
    verdicts.decide(losses, reducer);
    optimizer.step(reducer, verdicts.control());
    const UpdateDecision decision = verdicts.read_decision();
    EXPECT_TRUE(decision.applied()) << step;
    curve.losses.push_back(static_cast<float>(loss_sum / static_cast<double>(count)));
    curve.norms.push_back(static_cast<float>(decision.grad_norm));
  }
  optimizer.await_weights();
  return curve;
}

// Largest relative error of any step.
inline double worst_error(const std::vector<float>& values, const std::vector<float>& reference) {
  EXPECT_EQ(values.size(), reference.size());
  double worst = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(static_cast<double>(values[i]) - reference[i]) / std::abs(reference[i]);
    if (!(error <= worst)) worst = error;  // NaN stays
  }
  return worst;
}

}  // namespace mantissa::testing
