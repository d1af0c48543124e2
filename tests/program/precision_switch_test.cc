// Whether a switch of precision makes the loss jump, beside the same training without one.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>

#include "tests/program/threaded_run.h"
#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa::testing {
namespace {

constexpr int64_t kFirstSwitch = 20, kSecondSwitch = 40, kWindow = 10;

const std::vector<std::string> kExact = {"train.steps=60", "precision.compute=fp32"};

// Mean loss of the steps after a switch minus that of as many before it.
double jump(const std::map<int64_t, double>& losses, int64_t after) {
  double before = 0.0, behind = 0.0;
  for (int64_t step = 1; step <= kWindow; ++step) {
    before += losses.at(after + 1 - step) / static_cast<double>(kWindow);
    behind += losses.at(after + step) / static_cast<double>(kWindow);
  }
  return behind - before;
}

// The jump of the loss at each of the two switches, by seed.
using Jumps = std::array<std::vector<double>, 2>;

Jumps jumps(const std::string& name, int ranks, const std::vector<std::string>& settings) {
  Jumps found;
  for (int seed = 1; seed <= 3; ++seed) {
    const ThreadedRun run(name + std::to_string(seed));
    std::vector<std::string> all = settings;
    all.push_back("train.seed=" + std::to_string(seed));
    run.train(ranks, all);
    found[0].push_back(jump(run.losses(), kFirstSwitch));
    found[1].push_back(jump(run.losses(), kSecondSwitch));
  }
  return found;
}

class PrecisionSwitch : public ::testing::TestWithParam<int> {};

// Noise is what another seed does to the same difference of losses of a training that stays in fp32. docs/results/
// switches.md has the same of longer runs.
TEST_P(PrecisionSwitch, MakesNoJumpOfTheLossThatIsSeenBesideTheNoise) {
  std::vector<std::string> scheduled = kExact;
  scheduled.push_back(
      "precision.schedule=[{after_step: 20, compute: bf16}, {after_step: 40, compute: bf16, recipe: delayed}]");
  const Jumps stays = jumps("stays", GetParam(), kExact), switches = jumps("switches", GetParam(), scheduled);
  for (size_t which = 0; which < 2; ++which) {
    const double noise = mean_difference(stays[which], 0.95).stddev;
    for (size_t seed = 0; seed < 3; ++seed) {
      const double difference = switches[which][seed] - stays[which][seed];
      EXPECT_NE(difference, 0.0) << "nothing was switched";
      EXPECT_LT(std::abs(difference), noise) << "switch " << which << ", seed " << seed + 1;
      std::printf("switch %zu, seed %zu: %+.5f beside fp32, noise %.5f\n", which, seed + 1, difference, noise);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PrecisionSwitch, ::testing::Values(1, 2));

}  // namespace
}  // namespace mantissa::testing
