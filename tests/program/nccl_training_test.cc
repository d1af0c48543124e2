// The whole program over NCCL, on one real GPU (CUDA_VISIBLE_DEVICES): tools/gpu_check runs it. Contributions are added
// in rank order by the same kernels whatever carries them, so NCCL and MPI must give the same bits.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/nccl/nccl_connection.h"
#include "core/base/error.h"
#include "tests/program/gpu_run.h"

namespace mantissa::testing {
namespace {

constexpr const char* kConsent = "NCCL_MULTI_RANK_GPU_ENABLE";
constexpr int kFirstToShare = 23000;  // 2.30

std::vector<std::string> over(const std::string& transport) {
  return gpu_settings({"cuda.gemm=deterministic", "comm.backend=" + transport});
}

class NcclTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(unsetenv(kConsent), 0);
    try {
      version_ = nccl_version(load_nccl());
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void TearDown() override { unsetenv(kConsent); }

  // For cases with several ranks on the one GPU.
  void skip_unless_ranks_can_share() {
    if (version_ < kFirstToShare) {
      GTEST_SKIP() << fmt::format("NCCL {} found, 2.30 needed", nccl_version_text(version_));
    }
    ASSERT_EQ(setenv(kConsent, "1", 1), 0);
  }

  void expect_the_run_over_mpi(int ranks) {
    const SmallRun mpi(fmt::format("mpi_{}", ranks)), nccl(fmt::format("nccl_{}", ranks));
    mpi.train(ranks, over("mpi"));
    const Outcome outcome = nccl.train(ranks, over("nccl"));
    EXPECT_NE(outcome.output.find(fmt::format("{} rank{} (nccl)", ranks, ranks == 1 ? "" : "s")), std::string::npos)
        << outcome.output;
    ASSERT_EQ(nccl.losses().size(), 6u);
    EXPECT_EQ(nccl.losses(), mpi.losses());
    EXPECT_EQ(nccl.hashes(6), mpi.hashes(6));
  }

  // A captured step, repeated, against steps queued individually.
  void expect_the_run_of_a_graph(int ranks) {
    const SmallRun eager(fmt::format("eager_{}", ranks)), graph(fmt::format("graph_{}", ranks));
    eager.train(ranks, over("nccl"));
    std::vector<std::string> captured = over("nccl");
    captured.push_back("cuda.graph=true");
    graph.train(ranks, captured);
    ASSERT_EQ(graph.losses().size(), 6u);
    EXPECT_EQ(graph.losses(), eager.losses());
    EXPECT_EQ(graph.hashes(6), eager.hashes(6));
  }

  int version_ = 0;
};

TEST_F(NcclTraining, OneRankTrainsAsOverMpiBitForBit) { expect_the_run_over_mpi(1); }

TEST_F(NcclTraining, RanksThatShareAGpuAreRefusedUnlessNcclIsToldToAllowIt) {
  const SmallRun run("refused");
  const Outcome outcome = run.try_train(2, over("nccl"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  for (const char* text : {"ranks 0 and 1 both have GPU 0", "comm.backend: mpi", kConsent}) {
    EXPECT_NE(outcome.output.find(text), std::string::npos) << text << " in:\n" << outcome.output;
  }
}

TEST_F(NcclTraining, TwoRanksOnOneGpuTrainAsOverMpiBitForBit) {
  skip_unless_ranks_can_share();
  if (IsSkipped() || HasFatalFailure()) return;
  expect_the_run_over_mpi(2);
}

TEST_F(NcclTraining, OneRankRepeatsACapturedStepBitForBit) { expect_the_run_of_a_graph(1); }

TEST_F(NcclTraining, TwoRanksOnOneGpuRepeatACapturedStepBitForBit) {
  skip_unless_ranks_can_share();
  if (IsSkipped() || HasFatalFailure()) return;
  expect_the_run_of_a_graph(2);
}

TEST_F(NcclTraining, TwoRanksOnOneGpuHoldTheSameWeights) {
  skip_unless_ranks_can_share();
  if (IsSkipped() || HasFatalFailure()) return;
  const SmallRun run("weights");
  const auto weights = weights_of_ranks(run, 2, over("nccl"));
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
}

}  // namespace
}  // namespace mantissa::testing
