// The same bits on any number of ranks: a training of W lanes on 1 to W ranks, on the CPU.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/core/data/shard_file.h"
#include "tests/tools/train/trained_lanes.h"
#include "tools/train/checkpoint.h"
#include "tools/train/session_observers.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

struct LanesCase {
  const char* name;
  int lanes = 4, accumulation = 1;
  std::vector<std::string> settings;
};

// Settings whose effect might depend on where a gradient is made or summed.
const std::vector<LanesCase> kLanesCases = {
    {"bf16", 8, 1, {"precision.compute=bf16"}},
    {"bf16_accumulated", 4, 3, {"precision.compute=bf16", "model.dropout=0.1"}},
    {"fp32", 4, 1, {"precision.compute=fp32", "comm.wire_dtype=fp32"}},
    {"fp16_overflow",
     4,
     1,
     {"precision.compute=fp16", "comm.wire_dtype=fp16", "scaler.init_scale=16777216", "scaler.backoff_factor=0.0625"}},
    {"sum_in_wire_dtype", 6, 1, {"precision.compute=bf16", "comm.accumulate=wire"}},
    {"codes", 6, 1, {"precision.compute=bf16", "comm.wire_dtype=e4m3", "integrity.wire=true"}},
    {"codes_accumulated", 4, 3, {"precision.compute=fp32", "comm.wire_dtype=e5m2", "comm.wire_rounding=stochastic"}},
    {"stochastic_bf16", 4, 1, {"precision.compute=bf16", "comm.wire_rounding=stochastic"}},
    {"codes_with_feedback", 4, 2, {"precision.compute=fp32", "comm.wire_dtype=e5m2", "comm.error_feedback=true"}},
    {"feedback_replayed",
     6,
     1,
     {"precision.compute=bf16", "comm.error_feedback=true", "integrity.interval=1", "integrity.replay_interval=1",
      "precision.recipe=delayed"}},
    {"feedback_overflow",
     4,
     1,
     {"precision.compute=fp16", "comm.wire_dtype=fp16", "comm.error_feedback=true", "comm.wire_rounding=stochastic",
      "scaler.init_scale=16777216", "scaler.backoff_factor=0.0625", "scaler.growth_interval=1"}},
    {"clipped", 4, 1, {"precision.compute=bf16", "optimizer.clip.max_norm=0.05", "optimizer.lr=0.1"}},
    {"delayed_fp8", 4, 1, {"precision.compute=bf16", "precision.recipe=delayed", "comm.gather=fp8"}},
    {"state_in_8_bits",
     4,
     1,
     {"precision.compute=bf16", "optimizer.first_moment=8bit", "optimizer.second_moment=8bit",
      "optimizer.weight_rounding=stochastic"}},
    {"lora", 4, 1, {"precision.compute=bf16", "model.lora.rank=4"}},
    {"fp64", 4, 1, {"precision.compute=fp64"}},
    {"llama",
     4,
     1,
     {"precision.compute=bf16", "model.norm=rms_norm", "model.activation=swiglu", "model.position=rope",
      "model.kv_heads=2"}},
    {"packed", 4, 1, {"precision.compute=bf16", "data.packing=documents", "data.end_of_text=10"}},
};

class Lanes : public ::testing::TestWithParam<LanesCase> {};

TEST_P(Lanes, AnyNumberOfRanksTrainsTheSameBits) {
  const auto& [name, lanes, accumulation, given] = GetParam();
  const SmallRun run(fmt::format("lanes_{}", name));
  std::vector<std::string> settings = given;
  settings.insert(settings.end(), {fmt::format("train.lanes={}", lanes), "comm.bucket_mib=0.02",
                                   fmt::format("train.global_batch={}", 2 * lanes * accumulation),
                                   "train.eval_interval=1000", "train.eval_batches=2"});
  constexpr int kSteps = 5;
  const TrainedLanes one = train_lanes(run, {}, kSteps, settings);
  EXPECT_NE(one.weights.front(), one.weights.back());
  std::vector<std::string> halving = settings;
  halving.emplace_back("comm.exchange=halving");
  for (const bool shares_memory : {false, true}) {
    expect_same_bits(train_lanes(run, {4, shares_memory}, kSteps, halving), one, "halving");
  }
  for (const int ranks : {2, 3, 4, lanes}) {
    for (const RanksOf& layout : {RanksOf{ranks, false, Sharding::kSharded}, RanksOf{ranks, true, Sharding::kSharded},
                                  RanksOf{ranks, false, Sharding::kReplicated}}) {
      expect_same_bits(train_lanes(run, layout, kSteps, settings), one,
                       fmt::format("{} ranks, {}, {}", ranks, layout.shares_memory ? "shared memory" : "messages",
                                   layout.sharding == Sharding::kSharded ? "sharded" : "replicated"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, Lanes, ::testing::ValuesIn(kLanesCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Loss masks leave lanes without a target.
TEST(LanesOfMasks, LanesWithoutATargetAreTheSameOnAnyNumberOfRanks) {
  const SmallRun run("lanes_masks");
  constexpr int kTokens = 6400;
  std::vector<int32_t> tokens(kTokens);
  std::vector<uint8_t> counts(kTokens);
  for (int i = 0; i < kTokens; ++i) {
    tokens[static_cast<size_t>(i)] = 97 + i * i % 23;
    counts[static_cast<size_t>(i)] = i / 64 % 5 == 0 ? 1 : 0;
  }
  TokenShardWriter writer(256, "toy");
  writer.add(tokens, counts);
  const std::string shard = run.folder() + "/masked.safetensors";
  std::ofstream(shard, std::ios::binary) << shard_text(writer);
  const std::vector<std::string> settings = {
      "data.train=" + shard,    "data.format=tokens",       "train.lanes=4",       "train.global_batch=8",
      "precision.compute=bf16", "train.eval_interval=1000", "train.eval_batches=2"};
  const auto batches = open_batches(load_config(run.config_path(), settings), Objective::kNextToken);
  int silent_lanes = 0;
  for (uint64_t lane = 0; lane < 5 * 4; ++lane) {  // of 5 steps, with two sequences each
    std::vector<int32_t> inputs(2 * 32), targets(inputs);
    batches->train(2 * lane, {inputs, targets});
    silent_lanes += count_targets(targets) == 0 ? 1 : 0;
  }
  EXPECT_GT(silent_lanes, 5);
  const TrainedLanes one = train_lanes(run, {}, 5, settings);
  EXPECT_NE(one.weights.front(), one.weights.back());
  for (const int ranks : {2, 3, 4}) {
    expect_same_bits(train_lanes(run, {ranks}, 5, settings), one, fmt::format("{} ranks", ranks));
  }
}

// The gradient noise scale and the curvature are measured, and drive precisions: they must not depend on ranks either.
TEST(LanesOfMeasurements, NoiseScaleAndCurvatureAreTheSameOnAnyNumberOfRanks) {
  const SmallRun run("lanes_noise");
  const std::vector<std::string> settings = {"train.lanes=4", "train.global_batch=16", "precision.compute=bf16",
                                             "train.eval_interval=1000"};
  const auto measures = [](Config& config) {
    config.precision_adaptive.options = {.curvature = 1.0, .gradient_noise = 1.0};
    config.precision_adaptive.options.noise_interval = config.precision_adaptive.options.curvature_interval = 1;
  };
  const TrainedLanes one = train_lanes(run, {}, 3, settings, {}, measures);
  EXPECT_EQ(one.noise.size(), 2u);  // after the first step
  EXPECT_FALSE(one.curvatures.empty());
  for (const int ranks : {2, 3, 4}) {
    expect_same_bits(train_lanes(run, {ranks}, 3, settings, {}, measures), one, fmt::format("{} ranks", ranks));
  }
}

void save(Session& session) {
  RunState state(session.config);
  EXPECT_TRUE(TrainingCheckpoints(session, session.config).save(state));
}

class LanesOfCheckpoints : public ::testing::TestWithParam<std::vector<std::string>> {};

// N -> M -> K ranks through checkpoints: the weights of a run that was never stopped.
TEST_P(LanesOfCheckpoints, ARunMayGoOnWithFewerOrMoreRanks) {
  const SmallRun run("lanes_elastic");
  std::vector<std::string> settings = {"train.global_batch=8", "model.dropout=0.1", "train.eval_interval=1000"};
  settings.insert(settings.end(), GetParam().begin(), GetParam().end());
  const TrainedLanes whole = train_lanes(run, {4}, 9, settings);
  train_lanes(run, {4}, 3, settings, save);  // auto: the ranks of the first start
  TrainedLanes last;
  for (const auto& [ranks, steps] : {std::pair{3, 6}, std::pair{1, 7}, std::pair{2, 8}, std::pair{4, 9}}) {
    const Config config = load_config(run.config_path(), settings);
    TrainedLanes trained;
    mantissa::run_ranks(ranks, [&, ranks = ranks, steps = steps](Communicator& communicator) {
      Config own = config;
      own.train.kept_lanes = find_kept_lanes(own, communicator);
      EXPECT_EQ(own.train.kept_lanes, 4);
      validate_for_ranks(own, ranks);
      const ResumePoint point = find_resume_point(own, communicator).value();
      Session session(own, communicator);
      resume(session, own, point);
      TrainStep step(session);
      while (session.next_step < steps) {
        const auto reports = step.run();
        EXPECT_FALSE(reports.empty());
      }
      const uint64_t hash = hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream);
      if (communicator.rank() == 0) trained.weights.push_back(hash);
      save(session);
    });
    EXPECT_EQ(trained.weights.back(), whole.weights[static_cast<size_t>(steps - 1)]) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, LanesOfCheckpoints,
                         ::testing::Values(std::vector<std::string>{"precision.compute=fp16"},
                                           std::vector<std::string>{
                                               "precision.compute=fp16", "comm.wire_dtype=e4m3",
                                               "comm.error_feedback=true", "scaler.init_scale=16777216",
                                               "scaler.backoff_factor=0.0625", "scaler.growth_interval=1"}));

TEST(LanesOfFeedback, ResidualsAreStateOfTheTraining) {
  const SmallRun run("lanes_feedback");
  const std::vector<std::string> without = {"train.lanes=4", "train.global_batch=8", "comm.wire_dtype=e5m2",
                                            "train.eval_interval=1000", "checkpoint.allow_changes=true"};
  std::vector<std::string> settings = without;
  settings.emplace_back("comm.error_feedback=true");
  std::vector<std::vector<float>> residuals;
  const auto read = [](Session& session) {
    std::vector<std::vector<float>> found;
    for (const LaneResidual& residual : session.sharded.reducer.residuals()) {
      const float* const values = residual.values.data<float>();
      found.emplace_back(values, values + residual.values.numel());
    }
    return found;
  };
  StateHash hash;
  const TrainedLanes trained = train_lanes(run, {}, 4, settings, [&](Session& session) {
    save(session);
    residuals = read(session);
    hash = hash_state(session.sharded);
  });
  EXPECT_NE(train_lanes(run, {}, 4, without).weights, trained.weights);
  for (const int ranks : {1, 2, 3}) {
    train_lanes(run, {ranks}, 4, settings, [&](Session& session) {
      EXPECT_EQ(hash_state(session.sharded), hash) << ranks << " ranks";
      // Into another session of the same program, as where the precision changes.
      const HeldState held(session);
      Session next(session.config, session.communicator);
      EXPECT_NE(hash_state(next.sharded), hash);
      held.hand_over(next);
      EXPECT_EQ(hash_state(next.sharded), hash) << ranks << " ranks";
    });
  }
  // Switched off, the residuals of the checkpoint are left alone; switched on, they begin as zeros.
  const auto resumed = [&](const std::vector<std::string>& given) {
    std::vector<std::vector<float>> found;
    mantissa::run_ranks(1, [&](Communicator& communicator) {
      const Config config = load_config(run.config_path(), given);
      Session session(config, communicator);
      TrainStep(session).run();
      resume(session, config, find_resume_point(config, communicator).value());
      found = read(session);
      save(session);
    });
    return found;
  };
  EXPECT_EQ(resumed(settings), residuals);
  std::vector<std::string> half = settings;
  half[0] = "train.lanes=2";
  const std::vector<std::vector<float>> of_half = resumed(half);
  ASSERT_EQ(2 * of_half.size(), residuals.size());
  for (size_t index = 0; index < of_half.size(); ++index) {  // lanes 0 and 1 of each parameter
    EXPECT_EQ(of_half[index], residuals[index / 2 * 4 + index % 2]) << index;
  }
  EXPECT_TRUE(resumed(without).empty());
  std::vector<std::vector<float>> zeros = residuals;
  for (std::vector<float>& one : zeros) std::ranges::fill(one, 0.0f);
  EXPECT_EQ(resumed(settings), zeros);
}

TEST(LanesOfFeedback, TheMemoryOfResidualsIsPredicted) {
  const SmallRun run("lanes_feedback_memory");
  for (const auto& [ranks, lanes] : {std::pair{2, 2}, {2, 6}, {3, 4}}) {
    const std::vector<std::string> without = {fmt::format("train.lanes={}", lanes), "train.global_batch=12",
                                              "comm.wire_rounding=stochastic"};
    std::vector<std::string> settings = without;
    settings.emplace_back("comm.error_feedback=true");
    const Config config = load_config(run.config_path(), settings), other = load_config(run.config_path(), without);
    mantissa::run_ranks(ranks, [&, ranks = ranks, lanes = lanes](Communicator& communicator) {
      Session session(config, communicator);
      const size_t buffers = measure_memory_table(session).state.buffers;
      EXPECT_EQ(predict_memory_table(config, ranks).state.buffers, buffers);
      const auto numel = static_cast<size_t>(session.sharded.buckets.layout().numel());
      EXPECT_EQ(buffers - predict_memory_table(other, ranks).state.buffers,
                8 * numel * static_cast<size_t>((lanes + ranks - 1) / ranks));
    });
  }
}

TEST(LanesOfRanks, MoreRanksThanLanesTakeAsManyLanes) {
  TrainConfig train;
  train.kept_lanes = 2;
  EXPECT_EQ(train.lanes_of(1), 2);
  EXPECT_EQ(train.lanes_of(4), 4);
  train.lanes = 8;
  EXPECT_EQ(train.lanes_of(4), 8);
}

}  // namespace
}  // namespace mantissa::testing
