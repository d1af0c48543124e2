// comm.gather: fp8: trainings with it are the same as without, bit for bit.
#include "tools/train/step/precision_table.h"

#include <gtest/gtest.h>

#include <bit>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/program/program.h"
#include "tests/testing/weight_hash.h"
#include "tests/tools/config/minimal.h"
#include "tools/train/checkpoint.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

struct RankView {
  std::vector<uint64_t> losses, norms;  // bits: in a fault they are NaN
  std::vector<bool> applied;
  std::vector<uint64_t> weights;

  bool operator==(const RankView&) const = default;
};

struct Trained {
  std::vector<RankView> ranks;
  std::map<std::string, std::string> checkpoint;  // hashes by file, after the last step
};

// Ranks are threads of this process, and exchange their buffers. Goes on where a checkpoint of the run ends.
Trained train(const SmallRun& run, int ranks, int steps, std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"precision.recipe=delayed", "checkpoint.keep_last=0"});
  const Config config = load_config(run.config_path(), settings);
  Trained trained;
  trained.ranks.resize(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    RankView& view = trained.ranks[static_cast<size_t>(communicator.rank())];
    Session session(config, communicator);
    TrainingCheckpoints checkpoints(session, config);
    if (const auto point = find_resume_point(config, communicator)) resume(session, config, *point);
    TrainStep step(session);
    while (session.next_step < steps) {
      for (const StepReport& report : step.run()) {
        view.losses.push_back(std::bit_cast<uint64_t>(report.loss));
        view.norms.push_back(std::bit_cast<uint64_t>(report.grad_norm));
        view.applied.push_back(report.applied);
      }
      view.weights.push_back(
          hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream));
    }
    RunState state(config);
    EXPECT_TRUE(checkpoints.save(state));
    EXPECT_EQ(predict_memory_table(config, ranks).state, measure_memory_table(session).state);
  });
  trained.checkpoint = run.hashes(steps);
  return trained;
}

void expect_same_run(const std::string& name, int ranks, const std::string& yaml,
                     const std::vector<std::string>& settings) {
  SmallRun working("working_" + name), coded("coded_" + name);
  working.with_yaml(yaml);
  coded.with_yaml(yaml);
  constexpr int kSteps = 7;
  const Trained without = train(working, ranks, kSteps, settings);
  std::vector<std::string> with = settings;
  with.push_back("comm.gather=fp8");
  const Trained in_codes = train(coded, ranks, kSteps, with);
  ASSERT_EQ(in_codes.ranks[0].losses.size(), static_cast<size_t>(kSteps));
  for (size_t rank = 0; rank < in_codes.ranks.size(); ++rank) {
    EXPECT_TRUE(in_codes.ranks[rank] == in_codes.ranks[0]) << "all ranks hold and find the same";
    EXPECT_EQ(in_codes.ranks[rank].losses, without.ranks[rank].losses);
    EXPECT_EQ(in_codes.ranks[rank].norms, without.ranks[rank].norms);
    EXPECT_EQ(in_codes.ranks[rank].applied, without.ranks[rank].applied);
    EXPECT_NE(in_codes.ranks[rank].weights.back(), without.ranks[rank].weights.back()) << "something is rounded";
  }
  EXPECT_EQ(in_codes.checkpoint, without.checkpoint) << "weights, masters, moments, scales";
}

TEST(GatheredCodes, TrainTheSame) {
  for (const int ranks : {2, 3}) expect_same_run("ranks_" + std::to_string(ranks), ranks, "", {});
}

TEST(GatheredCodes, TrainTheSameWithEveryWayToKeepWeights) {
  expect_same_run("stochastic", 2, "", {"optimizer.weight_rounding=stochastic", "train.recompute=full"});
  expect_same_run("kahan", 2, "", {"optimizer.master=kahan", "optimizer.first_moment=8bit"});
  expect_same_run("no_master", 2, "", {"optimizer.master=none_stochastic", "precision.delayed.amax=most_recent"});
}

// Step 3 is skipped and examined. In step 1 an activation is not finite: the calibration before it is repeated.
TEST(GatheredCodes, TrainTheSameThroughFaults) {
  expect_same_run(
      "skipped", 2,
      "test: {faults: [{step: 3, rank: 1, parameter: blocks.0.attention.qkv.weight, element: 5, kind: nan}]}\n",
      {"precision.delayed.history=2"});
  expect_same_run("calibrated_twice", 2,
                  "test: {activations: [{step: 1, rank: 0, layer: blocks.0.mlp.up, op: linear, value: inf}]}\n", {});
}

TEST(GatheredCodes, GoOnFromACheckpointAsIfNothingHadHappened) {
  for (const char* rounding : {"nearest", "stochastic"}) {
    const std::string name = rounding;
    const SmallRun straight("straight_" + name), halves("halves_" + name);
    const std::vector<std::string> settings = {"comm.gather=fp8", "optimizer.weight_rounding=" + name};
    const Trained whole = train(straight, 2, 6, settings);
    train(halves, 2, 3, settings);
    const Trained second = train(halves, 2, 6, settings);
    EXPECT_EQ(second.checkpoint, whole.checkpoint);
    EXPECT_EQ(second.ranks[0].losses,
              std::vector<uint64_t>(whole.ranks[0].losses.begin() + 3, whole.ranks[0].losses.end()));
    EXPECT_EQ(second.ranks[1].weights, second.ranks[0].weights);
    // With the other setting, too: it is no part of what a training is.
    const SmallRun changed("changed_" + name);
    train(changed, 2, 3, settings);
    EXPECT_EQ(train(changed, 2, 6, {"optimizer.weight_rounding=" + name}).checkpoint, whole.checkpoint);
  }
}

// Counts what a rank hands to gathers of weights: of rows and of bf16.
class CountedGathers final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    bytes += send.size_bytes();
    return ForwardingCommunicator::all_gather(send, recv, stream);
  }
  size_t bytes = 0;
};

// The example of docs/precision.md, a GPT of two layers and width 384: the bytes counted are those planned.
TEST(GatheredCodes, BytesOfAStep) {
  const SmallRun run("bytes");
  GatherPlan plan;
  const auto bytes_with = [&](const std::string& gather) {
    size_t bytes = 0;
    run_ranks(2, [&](Communicator& local) {
      const Config config = load_config(
          run.config_path(), {"precision.recipe=delayed", "model.width=384", "model.heads=6", "model.context=16",
                              "train.global_batch=2", "train.micro_batch=1", "comm.gather=" + gather});
      CountedGathers communicator(local);
      Session session(config, communicator);
      TrainStep step(session);
      step.calibrate();
      communicator.bytes = 0;
      step.run();
      if (local.rank() != 0) return;
      bytes = communicator.bytes;
      plan = plan_gather(session.sharded.buckets.layout(),
                         gathered_codes(config, session.runtime.parameters, session.runtime.policy));
    });
    return bytes;
  };
  const size_t working = bytes_with("working"), codes = bytes_with("fp8");
  EXPECT_EQ(working - codes, plan.stored_bytes - plan.sent_bytes);
  EXPECT_EQ(plan.stored_bytes, size_t{3664896});
  EXPECT_EQ(plan.sent_bytes, size_t{1947648});
}

}  // namespace
}  // namespace mantissa::testing
