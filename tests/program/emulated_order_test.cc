// The whole program on the emulated GPU. It draws every order left open by a real GPU from a seed.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cstdlib>
#include <map>

#include "tests/program/gpu_run.h"

namespace mantissa::testing {
namespace {

TEST(EmulatedGpu, TheOrderOfThreadsAndStreamsChangesNoBit) {
  std::map<std::string, std::string> first;
  for (const char* seed : {"1", "2", "3"}) {
    ASSERT_EQ(setenv("MANTISSA_EMULATION_SEED", seed, 1), 0);
    const SmallRun run(std::string("seed_") + seed);
    run.train(2, gpu_settings({"train.steps=3", "optimizer.warmup_steps=1", "model.dropout=0.1"}));
    if (first.empty()) first = run.hashes(3);
    EXPECT_EQ(run.hashes(3), first) << seed;
  }
  ASSERT_EQ(unsetenv("MANTISSA_EMULATION_SEED"), 0);
}

// With the same lanes, on one to three ranks and by every exchange between them.
TEST(EmulatedGpu, TheNumberOfRanksChangesNoBit) {
  std::map<std::string, std::string> one;
  for (const auto& [ranks, exchange] : {std::pair{1, "direct"}, {2, "direct"}, {2, "halving"}, {3, "direct"}}) {
    const SmallRun run(fmt::format("lanes_{}_{}", ranks, exchange));
    run.train(ranks, gpu_settings({"train.steps=3", "optimizer.warmup_steps=1", "model.dropout=0.1", "train.lanes=4",
                                   fmt::format("comm.exchange={}", exchange)}));
    if (one.empty()) one = run.hashes(3);
    EXPECT_EQ(run.hashes(3).at("model.safetensors"), one.at("model.safetensors")) << ranks << " ranks, " << exchange;
  }
}

}  // namespace
}  // namespace mantissa::testing
