// The training step of several ranks captured in CUDA graphs, over NCCL: ranks are threads, the GPU is emulated, and
// NCCL has a stand-in.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "comm/nccl/nccl_communicator.h"
#include "tests/comm/fake_nccl.h"
#include "tests/program/gpu_run.h"
#include "tests/testing/weight_hash.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

struct RankView {
  std::vector<double> losses;  // of each step, skipped ones included
  std::vector<bool> applied;
  uint64_t weights = 0;

  bool operator==(const RankView&) const = default;
};

std::vector<RankView> train(const SmallRun& run, int ranks, const std::vector<std::string>& settings) {
  const Config config = load_config(run.config_path(), gpu_settings(settings));
  const NcclApi api = make_fake_nccl({.version = 23000});
  std::vector<RankView> views(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& local) {
    RankView& view = views[static_cast<size_t>(local.rank())];
    const auto nccl = create_nccl_communicator(api, std::make_unique<ForwardingCommunicator>(local));
    Session session(config, *nccl);
    TrainStep step(session);
    const auto note = [&view](const std::vector<StepReport>& reports) {
      for (const StepReport& report : reports) {
        view.losses.push_back(report.loss);
        view.applied.push_back(report.applied);
      }
    };
    while (step.next_to_start() < config.train.steps) note(step.run());
    note(step.finish());
    view.weights = hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream);
  });
  EXPECT_EQ(fake_nccl_counts().misuses, 0);
  EXPECT_EQ(fake_nccl_counts().destroyed, ranks);
  return views;
}

// Dropout and the rounding of weights draw anew in every repetition, residuals change with every update, and the first
// scales overflow.
TEST(CapturedStep, GivesEveryBitOfAnEagerOneOnEveryRank) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // both ranks are on the one emulated GPU
  const SmallRun run("captured_step");
  const std::vector<std::string> settings = {"cuda.gemm=deterministic",  "model.dropout=0.1",
                                             "precision.compute=fp16",   "scaler.init_scale=16777216",
                                             "scaler.growth_interval=2", "comm.error_feedback=true",
                                             "optimizer.warmup_steps=1", "optimizer.weight_rounding=stochastic"};
  std::vector<std::string> captured_settings = settings;
  captured_settings.push_back("cuda.graph=true");
  const auto eager = train(run, 2, settings);
  const size_t eager_calls = fake_nccl_calls().size();
  const auto captured = train(run, 2, captured_settings);
  EXPECT_LT(2 * fake_nccl_calls().size(), eager_calls + 8);  // two steps of six call NCCL, and the first weights
  ASSERT_EQ(eager[0].losses.size(), 6u);
  EXPECT_TRUE(captured == eager);
  EXPECT_EQ(captured[0].weights, captured[1].weights);
  EXPECT_NE(captured[0].applied, std::vector<bool>(6, false));
  EXPECT_NE(captured[0].applied, std::vector<bool>(6, true));
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

// Amaxes, codes and their decoded values are part of the captured step. Every bit equals a run that gathers plain
// weights.
TEST(CapturedStep, GathersWeightsAsCodes) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const SmallRun run("captured_codes");
  const std::vector<std::string> working = {"cuda.gemm=deterministic", "train.steps=4", "optimizer.warmup_steps=1",
                                            "precision.recipe=delayed", "precision.delayed.history=2"};
  std::vector<std::string> coded = working, captured = working;
  coded.push_back("comm.gather=fp8");
  captured.insert(captured.end(), {"comm.gather=fp8", "cuda.graph=true"});
  const auto stored = train(run, 2, working), eager = train(run, 2, coded), graph = train(run, 2, captured);
  ASSERT_EQ(eager[0].losses.size(), 4u);
  EXPECT_TRUE(graph == eager);
  EXPECT_EQ(eager[0].losses, stored[0].losses);
  EXPECT_EQ(eager[0].weights, eager[1].weights);
  EXPECT_NE(eager[0].weights, stored[0].weights);
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

}  // namespace
}  // namespace mantissa::testing
