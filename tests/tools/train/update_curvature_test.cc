// The curvature along an update, from losses, against the same from gradients after and before the update.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "comm/local/local_communicator.h"
#include "tests/program/program.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

const std::vector<std::string> kSettings = {"precision.compute=fp32", "comm.wire_dtype=fp32",
                                            "precision.adaptive.curvature=1",
                                            "precision.adaptive.levels=[{compute: fp32}, {compute: bf16}]"};

// With measurements every three steps.
Config load_measured(const std::string& path, const std::vector<std::string>& settings) {
  Config config = load_config(path, settings);
  config.precision_adaptive.options.curvature_interval = 3;
  config.precision_adaptive.options.noise_interval = 3;
  return config;
}

// All of a rank's part, piece by piece.
std::vector<float> masters(Session& session) {
  std::vector<float> values;
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
    const Tensor& stored = piece.master.defined() ? piece.master : piece.weight;
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(piece.count));
    session.runtime.backend->download(stored, values.data() + begin, *session.runtime.stream);
  }
  return values;
}

std::vector<float> gradients(Session& session) {
  std::vector<float> values;
  for (int bucket = 0; bucket < session.sharded.buckets.size(); ++bucket) {
    const Tensor shard = session.sharded.reducer.result_shard(bucket);
    for (const Segment& segment :
         session.sharded.buckets.layout().shard_segments(bucket, session.communicator.rank())) {
      const size_t begin = values.size();
      values.resize(begin + static_cast<size_t>(segment.count));
      session.runtime.backend->download(shard.slice(segment.offset, segment.count), values.data() + begin,
                                        *session.runtime.stream);
    }
  }
  return values;
}

TEST(UpdateCurvature, IsThatOfTheChangeOfTheGradient) {
  const SmallRun run("curvature");
  LocalGroup group(1);
  const Config config = load_measured(run.config_path(), kSettings);
  Session session(config, group.rank(0));
  TrainStep step(session);
  StepWork work(session);
  int measured = 0;
  for (int index = 0; index < 13; ++index) {
    const std::vector<float> before = masters(session);
    const std::vector<StepReport> reports = step.run();
    ASSERT_EQ(reports.size(), 1u);
    ASSERT_EQ(reports[0].curvature.has_value(), index > 0 && index % 3 == 0) << index;
    // Third derivatives count in the two by different amounts, and much in AdamW's first updates, all of whose elements
    // are as large as the rate.
    if (!reports[0].curvature || index < 6) continue;
    ++measured;
    const std::vector<float> gradient = gradients(session), after = masters(session);
    work.load(index);
    const double prescale = std::ldexp(1.0, gradient_prescale_log2(1, session.micro_batches()));
    work.set_loss_gradient(prescale, reports[0].tokens);
    work.run();
    const std::vector<float> behind = gradients(session);
    double slope = 0.0, curve = 0.0;
    for (size_t i = 0; i < before.size(); ++i) {
      const double update = static_cast<double>(after[i]) - static_cast<double>(before[i]);
      slope += update * static_cast<double>(gradient[i]);
      curve += update * (static_cast<double>(behind[i]) - static_cast<double>(gradient[i]));
    }
    ASSERT_LT(slope, 0.0);
    EXPECT_NEAR(*reports[0].curvature, curve / -slope, 0.1 * std::abs(curve / -slope)) << index;
  }
  EXPECT_EQ(measured, 3);
}

TEST(UpdateCurvature, IsTheSameOnAllRanksAndForAnyNumberOfThem) {
  const SmallRun run("curvature_ranks");
  const auto curvature = [&](int ranks) {
    const Config config = load_measured(run.config_path(), kSettings);
    LocalGroup group(ranks);
    std::vector<double> found(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Session session(config, group.rank(rank));
        TrainStep step(session);
        for (int index = 0; index < 4; ++index) {
          for (const StepReport& report : step.run())
            found[static_cast<size_t>(rank)] = report.curvature.value_or(-9.0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return found;
  };
  const double alone = curvature(1)[0];
  const std::vector<double> shared = curvature(3);
  EXPECT_GT(alone, 0.0);
  EXPECT_EQ(shared[0], shared[1]);
  EXPECT_EQ(shared[0], shared[2]);
  EXPECT_NEAR(shared[0], alone, 0.02 * alone);
}

// The loss scale is no part of it.
TEST(UpdateCurvature, DoesNotDependOnTheLossScale) {
  const SmallRun run("curvature_scale");
  std::vector<double> found;
  for (const char* mode : {"scaler.mode=none", "scaler.mode=static"}) {
    std::vector<std::string> settings = kSettings;
    settings.insert(settings.end(), {mode, "scaler.init_scale=1024"});
    const Config config = load_measured(run.config_path(), settings);
    LocalGroup group(1);
    Session session(config, group.rank(0));
    TrainStep step(session);
    for (int index = 0; index < 4; ++index) {
      for (const StepReport& report : step.run()) {
        if (report.curvature) found.push_back(*report.curvature);
      }
    }
  }
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NEAR(found[0], found[1], 1e-3 * found[0]);
}

// Constant weights, and six micro-batches a step. The norms of their gradients equal the norms in a training with
// one micro-batch a step.
TEST(GradientNoise, IsThatOfTheMicroBatchesAsStepsOfTheirOwn) {
  const SmallRun run("gradient_noise");
  const auto reports_of = [&](const std::vector<std::string>& more, int steps, int ranks) {
    std::vector<std::string> settings = {"precision.compute=fp32", "comm.wire_dtype=fp32", "optimizer.lr=1e-30",
                                         "precision.adaptive.levels=[{compute: fp32}, {compute: bf16}]"};
    settings.insert(settings.end(), more.begin(), more.end());
    const Config config = load_measured(run.config_path(), settings);
    LocalGroup group(ranks);
    std::vector<std::vector<StepReport>> found(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Session session(config, group.rank(rank));
        TrainStep step(session);
        for (int index = 0; index < steps; ++index) {
          for (const StepReport& report : step.run()) found[static_cast<size_t>(rank)].push_back(report);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& other : found) EXPECT_EQ(other.back().gradient_noise, found[0].back().gradient_noise);
    return found[0];
  };
  const std::vector<std::string> watched = {"precision.adaptive.gradient_noise=2"};
  const std::vector<StepReport> whole = reports_of(watched, 4, 1);
  EXPECT_FALSE(whole[2].gradient_noise);
  ASSERT_TRUE(whole[3].gradient_noise);
  const std::vector<StepReport> single =
      reports_of({"precision.adaptive.curvature=1", "train.global_batch=2", "train.steps=24"}, 24, 1);
  double squares = 0.0;
  for (size_t micro = 0; micro < 6; ++micro) {
    const double norm = single[18 + micro].grad_norm / 6.0;
    squares += norm * norm;
  }
  const double norm = whole[3].grad_norm;
  const double expected = (6.0 * squares - norm * norm) / (5.0 * norm * norm);
  EXPECT_GT(expected, 0.0);
  EXPECT_NEAR(*whole[3].gradient_noise, expected, 1e-4 * expected);
  EXPECT_NEAR(*reports_of(watched, 4, 3)[3].gradient_noise, expected, 1e-4 * expected);
}

}  // namespace
}  // namespace mantissa::testing
