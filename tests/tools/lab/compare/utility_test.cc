// The utility of made-up runs, by hand.
#include "tools/lab/compare/precision_comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
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
