// The whole program on the emulated GPU. It draws every order left open by a real GPU from a seed.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace mantissa::testing
