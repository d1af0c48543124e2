// NaN and Inf in masters and moments: every rank learns of them, and where they are.
#include "comm/sharded_state.h"

#include <gtest/gtest.h>
#include <limits>

#include "comm/local/local_communicator.h"
#include "comm/verdict_reduction.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

// A rank of a toy training. Its updates can have a huge gradient at one element.
struct FaultyTraining {
  FaultyTraining(Communicator& communicator, Sharding sharding, const AdamWOptions& options)
      : backend(create_backend("cpu")), stream(backend->create_stream()), adamw(options) {
    testing::add_toy_parameters(parameters);
    state = std::make_unique<ShardedState>(
        parameters,
        ShardedStateOptions{.layout = BucketLayout(parameters, communicator.size(), testing::kToyCapacityBytes,
                                                   state_alignment(options)),
                            .reduction = {.wire = DType::kF32, .sharding = sharding},
                            .adamw = options},
        communicator, *backend, *stream);
    state->optimizer.initialize(testing::kSeed);
  }

  // Returns the decision that the update obeys.
  UpdateDecision step(VerdictReduction& verdicts, float value) {
    parameters.forget_gradients();
    state->reducer.begin();
    for (int index = parameters.size() - 1; index >= 0; --index) {
      Parameter& parameter = parameters[index];
      float* values = parameter.gradient.data<float>();
      for (int64_t i = 0; i < parameter.numel(); ++i) values[i] = testing::toy_gradient(0, index, i);
      if (index == 6) values[4000] = value;
      parameter.gradient_written = true;
      state->reducer.ready(parameter);
    }
    state->reducer.finish();
    const float loss = 1.0f;
    const Tensor losses = backend->make_tensor(DType::kF32, {1}, "losses");
    backend->upload(&loss, losses, *stream);
    verdicts.plan(
        plan_update(adamw, state->optimizer.applied_steps(), 1.0, std::numeric_limits<double>::infinity(), 1e-2));
    verdicts.decide(losses, state->reducer, state->optimizer.faults());
    state->optimizer.step(state->reducer, verdicts.control());
    state->optimizer.await_weights();
    return verdicts.read_decision();
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ParameterSet parameters;
  AdamWOptions adamw;
  std::unique_ptr<ShardedState> state;
};

// An update makes an element of the second moment Inf, on one rank. The next verdict reports it to all ranks.
TEST(StateFaults, AreSeenByEveryRankAndNamed) {
  for (const testing::NamedState& named : testing::named_states()) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      run_ranks(3, [&](Communicator& communicator) {
        FaultyTraining training(communicator, sharding, named.options);
        VerdictReduction verdicts(communicator, *training.backend, *training.stream);
        EXPECT_TRUE(training.step(verdicts, 1.0f).applied());
        EXPECT_FALSE(has_state_faults(*training.state));
        EXPECT_TRUE(training.step(verdicts, 1e22f).applied()) << "the gradient itself is finite";
        EXPECT_TRUE(has_state_faults(*training.state)) << named.name;
        const std::string text = describe_state_faults(*training.state);
        EXPECT_EQ(text.find("the second moment v of 'down.weight' is Inf at element "), 0u)
            << named.name << ": " << text;
        const bool has_codes = named.options.second_moment == MomentFormat::kBlockwise8Bit;
        // Codes are not finite by blocks. 3 * 1e22 is the gradient of the sum.
        EXPECT_NE(text.find(has_codes ? "element 3840," : "element 4000,"), std::string::npos) << text;
        const UpdateDecision decision = training.step(verdicts, 1.0f);
        EXPECT_EQ(decision.outcome, StepOutcome::kStateFault) << named.name;
        EXPECT_FALSE(decision.applied());
      });
    }
  }
}

// The state of an older version of the program, or of another session, is judged as an update's.
TEST(StateFaults, AreFoundInLoadedState) {
  run_ranks(2, [&](Communicator& communicator) {
    for (const int faulty : {-1, 2}) {
      FaultyTraining training(communicator, Sharding::kSharded, testing::kOptions);
      ShardedOptimizer& optimizer = training.state->optimizer;
      optimizer.begin_load();
      for (int index = 0; index < training.parameters.size(); ++index) {
        std::vector<float> values(static_cast<size_t>(training.parameters[index].numel()), 0.5f);
        if (index == faulty) values.back() = std::numeric_limits<float>::quiet_NaN();
        optimizer.load({.parameter = index, .begin = 0, .weights = values, .m = {.values = values}});
      }
      optimizer.end_load(1);
      EXPECT_EQ(has_state_faults(*training.state), faulty >= 0);
      EXPECT_EQ(describe_state_faults(*training.state),
                faulty < 0 ? "" : "the master of 'norm1.bias' is NaN at element 62, on rank 1");
    }
  });
}

}  // namespace
}  // namespace mantissa
