// The utility of made-up runs, by hand.
#include "tools/lab/compare/precision_comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/tensor/philox.h"
#include "tests/tools/config/minimal.h"
#include "tools/run/report/report.h"

namespace mantissa {
namespace {

constexpr double kFall = 0.3;  // nats while the steps grow e-fold

// Its loss falls by kFall for each e-fold of the steps, and ends `above` that of the baseline.
TrainingRecord falling_run(double above, double seconds, size_t bytes, double noise = 0.0) {
  TrainingRecord record{.steps = {}, .validation = {}, .memory = {}, .peak_memory_bytes = bytes};
  for (int step = 1; step <= 400; ++step) {
    const double wave = noise * (step % 2 == 0 ? 1.0 : -1.0);
    record.steps.push_back({.loss = 6.0 - kFall * std::log(step) + wave, .grad_norm = 1.0, .seconds = seconds});
  }
  record.validation = {{0, 6.0}, {400, 6.0 - kFall * std::log(400.0) + above}};
  return record;
}

PrecisionComparison three_seeds(const std::vector<TrainingRecord>& baseline,
                                const std::vector<std::pair<std::string, std::vector<TrainingRecord>>>& others) {
  PrecisionComparison found{.options = {.title = "made.yaml", .seeds = 3, .baseline = ""},
                            .config = testing::minimal_config(),
                            .device = "none",
                            .seeds = {1, 2, 3},
                            .precisions = {}};
  found.precisions.push_back({.name = "fp32", .config = found.config, .runs = baseline});
  for (const auto& [name, runs] : others) {
    found.precisions.push_back({.name = name, .config = found.config, .runs = runs});
  }
  return found;
}

std::vector<TrainingRecord> thrice(const TrainingRecord& run) { return {run, run, run}; }

Json utility(const PrecisionComparison& comparison, const std::string& weights) {
  return utility_of(comparison, parse_utility(weights), [](const std::string&) { return 7.0; });
}

TEST(UtilityWeights, AreReadAndPrinted) {
  const UtilityWeights weights = parse_utility("time=0.5,loss=1");
  EXPECT_EQ(weights.loss, 1.0);
  EXPECT_EQ(weights.time, 0.5);
  EXPECT_EQ(weights.memory, 0.0);
  EXPECT_EQ(describe(weights), "loss=1,time=0.5");
  for (const char* wrong : {"", "loss", "loss=", "loss=-1", "loss=nan", "loss=0", "loss=1,loss=2", "speed=1", "loss=1,",
                            "loss=1x", "loss=1;time=1"}) {
    EXPECT_THROW(parse_utility(wrong), ConfigError) << wrong;
  }
}

TEST(NatsPerEfold, IsTheSlopeOfTheSecondHalf) {
  EXPECT_NEAR(nats_per_efold(thrice(falling_run(0, 1, 1)), 0.95).value(), kFall, 1e-9);
  EXPECT_NEAR(nats_per_efold(thrice(falling_run(0, 1, 1, 0.01)), 0.95).value(), kFall, 0.002);
  EXPECT_FALSE(nats_per_efold({falling_run(0, 1, 1)}, 0.95)) << "one run does not show how much it scatters";
  TrainingRecord rising = falling_run(0, 1, 1);
  for (size_t step = 0; step < rising.steps.size(); ++step)
    rising.steps[step].loss = 5.0 + 1e-3 * static_cast<double>(step);
  EXPECT_FALSE(nats_per_efold(thrice(rising), 0.95));
  EXPECT_FALSE(nats_per_efold({falling_run(0, 1, 1), rising, falling_run(0, 1, 1)}, 0.95));
}

TEST(Utility, IsTheWeightedSumOfLogarithms) {
  const auto found =
      utility(three_seeds(thrice(falling_run(0, 0.02, 1000)), {{"bf16", thrice(falling_run(0.03, 0.01, 800))}}),
              "loss=1,time=0.5,memory=0.2,energy=3");
  EXPECT_NEAR(found["nats_per_efold"].get<double>(), kFall, 1e-9);
  const Json& bf16 = found["precisions"][1];
  EXPECT_NEAR(bf16["loss"].get<double>(), 0.1, 1e-9) << "0.03 nats are made up for by a tenth more steps";
  EXPECT_NEAR(bf16["time"].get<double>(), -std::log(2.0), 1e-12);
  EXPECT_NEAR(bf16["memory"].get<double>(), std::log(0.8), 1e-12);
  EXPECT_EQ(bf16["energy"], 0.0);
  EXPECT_NEAR(bf16["utility"]["mean"].get<double>(), -(0.1 - 0.5 * std::log(2.0) + 0.2 * std::log(0.8)), 1e-9);
  EXPECT_EQ(found["precisions"][0]["utility"]["mean"], 0.0);
}

TEST(Utility, TheWinnerIsNamedWithItsEvidence) {
  const auto comparison =
      three_seeds(thrice(falling_run(0, 0.02, 1000)),
                  {{"bf16", thrice(falling_run(0.001, 0.01, 780))}, {"fp16", thrice(falling_run(0.6, 0.009, 780))}});
  const auto found = utility(comparison, "loss=1,time=0.5,memory=0.2");
  EXPECT_EQ(found["winner"], "bf16");
  EXPECT_EQ(found["sentence"],
            "By loss=1,time=0.5,memory=0.2, bf16 wins (+0.3929 ±0.0000): the loss equal within 0.0045 nats, "
            "0.50 times the time, 22 % less memory");
  EXPECT_EQ(utility(comparison, "time=1")["winner"], "fp16") << "if the loss counts nothing";
  EXPECT_EQ(utility(comparison, "loss=1")["winner"], "fp32");
}

TEST(Utility, DifferencesThatChanceMakesNameNoWinner) {
  const auto comparison = three_seeds(
      thrice(falling_run(0, 0.02, 1000)),
      {{"bf16", {falling_run(0.01, 0.02, 1000), falling_run(-0.02, 0.02, 1000), falling_run(0.0, 0.02, 1000)}}});
  const auto found = utility(comparison, "loss=1");
  EXPECT_EQ(found["winner"], nullptr);
  EXPECT_EQ(found["sentence"],
            "By loss=1, the evidence is too thin to name a winner: the lead of bf16 (+0.011) over fp32 (+0.000) "
            "may be chance: give more seeds");
}

// A run of 12 steps whose loss falls by `slope` nats for each e-fold of the steps.
TrainingRecord sloping_run(double slope, double final_loss, double seconds) {
  TrainingRecord record{.steps = {}, .validation = {{0, 6.0}, {12, final_loss}}, .memory = {}};
  record.peak_memory_bytes = 1000;
  for (int step = 1; step <= 12; ++step) {
    record.steps.push_back({.loss = 6.0 - slope * std::log(step), .grad_norm = 1.0, .seconds = seconds});
  }
  return record;
}

// The share of comparisons that name a winner where the loss exactly pays for the time: the mean slope is 1, the steps
// take exp(-0.3) times the time, and the mean difference of losses is 0.3. The slope is log-normal over seeds.
double winner_share(uint32_t seeds, double variation, uint32_t trials) {
  const double deviation = std::sqrt(std::log(1.0 + variation * variation));
  PrecisionComparison comparison = three_seeds({}, {{"bf16", {}}});
  Runs &baseline = comparison.precisions[0].runs, &bf16 = comparison.precisions[1].runs;
  comparison.seeds.assign(seeds, 1);
  double share = 0.0;
  for (uint32_t trial = 0; trial < trials; ++trial) {
    baseline.clear();
    bf16.clear();
    for (uint32_t seed = 0; seed < seeds; ++seed) {
      const PhiloxCounter words = philox(20252, {trial, seed, seeds, 0});
      const auto [of_slope, of_loss] = normal_pair(words[0], words[1]);
      const double slope = std::exp(deviation * static_cast<double>(of_slope) - 0.5 * deviation * deviation);
      baseline.push_back(sloping_run(slope, 3.0, 1.0));
      bf16.push_back(sloping_run(slope, 3.3 + 0.03 * static_cast<double>(of_loss), std::exp(-0.3)));
    }
    share += utility(comparison, "loss=1,time=1")["winner"].is_null() ? 0.0 : 1.0 / trials;
  }
  return share;
}

// About 5 %, and somewhat more where slopes are as skewed as here. With the slope taken as known, these shares were 21,
// 41, 16 and 71 %.
TEST(Utility, AtBreakEvenAWinnerIsNamedAsSeldomAsTheLevelSays) {
  constexpr uint32_t kTrials = 1000;
  struct Stated {
    uint32_t seeds;
    double variation, share;
  };
  for (const Stated& one : {Stated{3, 0.3, 0.052}, {8, 0.3, 0.056}, {3, 0.86, 0.048}, {8, 0.86, 0.064}}) {
    const double sampling = 2.5 * std::sqrt(one.share * (1.0 - one.share) / kTrials);
    EXPECT_NEAR(winner_share(one.seeds, one.variation, kTrials), one.share, sampling)
        << one.seeds << " seeds, variation " << one.variation;
  }
}

// The interval of the utility, with slopes 1, 2, 3 and differences 0.5, 1, 1.5 or reversed: r = 1 / 2, and
// l_i = (D_i - r (S_i - 2)) / 2 is 0.5 for each, or 0.5 and 0.5 +- 0.5.
TEST(Utility, TheErrorOfTheSlopeIsInTheInterval) {
  const auto found = [](const std::vector<double>& differences) {
    Runs baseline, bf16;
    for (size_t i = 0; i < 3; ++i) {
      baseline.push_back(sloping_run(static_cast<double>(i + 1), 3.0, 1.0));
      bf16.push_back(sloping_run(static_cast<double>(i + 1), 3.0 + differences[i], 1.0));
    }
    auto comparison = three_seeds(baseline, {{"bf16", bf16}});
    comparison.options.level = 0.5;  // at 95 % three such slopes are not told from 0
    return utility(comparison, "loss=1")["precisions"][1]["utility"];
  };
  const Json together = found({0.5, 1.0, 1.5}), against = found({1.5, 1.0, 0.5});
  EXPECT_NEAR(together["mean"].get<double>(), -0.5, 1e-9);
  EXPECT_NEAR(together["interval"]["low"].get<double>(), -0.5, 1e-9);
  EXPECT_NEAR(against["mean"].get<double>(), -0.5, 1e-9);
  const double half = student_t_quantile(0.75, 2) * 0.5 / std::sqrt(3.0);
  EXPECT_NEAR(against["interval"]["low"].get<double>(), -0.5 - half, 1e-9);
}

TEST(Utility, ShortRunsNameNoWinnerWhereTheLossCounts) {
  const auto shortened = [](TrainingRecord run) {
    run.steps.resize(12);
    return run;
  };
  const auto comparison = three_seeds(thrice(shortened(falling_run(0, 0.02, 1000))),
                                      {{"bf16", thrice(shortened(falling_run(1e-4, 0.01, 1000, 1e-4)))}});
  const auto found = utility(comparison, "loss=1,time=1");
  EXPECT_EQ(found["winner"], nullptr);
  EXPECT_NE(found["sentence"].get<std::string>().find("too few steps to tell"), std::string::npos) << found["sentence"];
  EXPECT_EQ(utility(comparison, "time=1")["winner"], "bf16");
}

TEST(Utility, PrecisionsThatFailedTakeNoPart) {
  TrainingRecord failed = falling_run(0, 0.01, 500);
  failed.failure = "stopped";
  const auto good = thrice(falling_run(0, 0.02, 1000));
  const auto found = utility(three_seeds(good, {{"fp16", {failed, good[1], good[2]}}}), "time=1");
  EXPECT_EQ(found["precisions"].size(), 1u);
  EXPECT_NE(found["sentence"].get<std::string>().find("fewer than two precisions"), std::string::npos);
  const auto nothing = utility(three_seeds({failed, good[1], good[2]}, {{"bf16", good}}), "time=1");
  EXPECT_EQ(nothing["precisions"].size(), 0u);
  EXPECT_NE(nothing["sentence"].get<std::string>().find("fp32, the baseline, failed with some seed"),
            std::string::npos);
  EXPECT_NE(found["sentence"].get<std::string>().find("Not rated, since some seed failed: fp16"), std::string::npos);
  PrecisionComparison single = three_seeds({good[0]}, {{"bf16", {good[0]}}});
  single.seeds = {1};
  EXPECT_NE(utility(single, "loss=1")["sentence"].get<std::string>().find("one seed does not show"), std::string::npos);
}

}  // namespace
}  // namespace mantissa
