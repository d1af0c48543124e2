#include "tools/lab/advise/plan/shared_options.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/tools/train/program.h"
#include "tools/lab/advise/plan/trial_configs.h"
#include "tools/train/dry_run.h"

namespace mantissa::testing {
namespace {

const std::vector<std::string> kAll = {kMoments, kMasters, kWire};

std::string text_of(const PlannedPlace& place) {
  std::string text = place.name() + ":";
  for (const PlaceOption& option : place.options) {
    text += (option.name == place.configured ? " *" : " ") + option.name;
  }
  return text;
}

std::vector<std::string> texts(const Config& config, DType low, const std::vector<std::string>& kinds, int ranks) {
  std::vector<std::string> found;
  for (const PlannedPlace& place : planned_shared(config, low, kinds, ranks)) found.push_back(text_of(place));
  return found;
}

TEST(SharedOptions, AreThoseOfWhatTheOptimizerKeepsAndOfTheWire) {
  const SmallRun run("shared_options");
  const Config config = load_config(run.config_path());
  const std::vector<std::string> moments = {"optimizer.first_moment: *fp32 bf16 8bit",
                                            "optimizer.second_moment: *fp32 bf16_stochastic 8bit"};
  std::vector<std::string> all = moments;
  all.emplace_back("optimizer.master: *fp32 kahan none_stochastic");
  EXPECT_EQ(texts(config, DType::kBF16, kAll, 1), all) << "one rank sends nothing";
  all.emplace_back("comm.wire_dtype: fp32 *bf16");
  EXPECT_EQ(texts(config, DType::kBF16, kAll, 2), all);
  EXPECT_EQ(texts(config, DType::kBF16, {kMoments}, 2), moments);
  EXPECT_TRUE(planned_shared(config, DType::kBF16, {}, 2).empty());
}

TEST(SharedOptions, WithFp16HaveNoMastersToDecideAbout) {
  const SmallRun run("shared_options_fp16");
  const Config config = load_config(run.config_path(), {"optimizer.first_moment=8bit"});
  const std::vector<std::string> found = {"optimizer.first_moment: fp32 bf16 *8bit",
                                          "optimizer.second_moment: *fp32 bf16_stochastic 8bit",
                                          "comm.wire_dtype: fp32 fp16 *bf16"};
  EXPECT_EQ(texts(config, DType::kF16, kAll, 4), found);
}

TEST(SharedOptions, BecomeSettingsOfAConfigurationThatTrains) {
  const SmallRun run("shared_options_config");
  const Config config = load_config(run.config_path(), {"optimizer.weight_rounding=stochastic"});
  const auto places = planned_shared(config, DType::kBF16, kAll, 2);
  const auto planned = [&](const Plan& plan) {
    const Config made = with_plan(config, DType::kBF16, places, plan);
    ops_of(made);
    return parse_config(to_yaml(made), "plan");  // as it is written, and read back
  };
  const Config exact = planned({0, 0, 0, 0}), low = planned({2, 1, 2, 1}), kahan = planned({1, 2, 1, 0});
  EXPECT_EQ(exact.optimizer.adamw.first_moment, MomentFormat::kF32);
  EXPECT_EQ(exact.optimizer.adamw.master, MasterWeights::kF32);
  EXPECT_EQ(exact.optimizer.adamw.weight_rounding, WeightRounding::kStochastic) << "as configured";
  EXPECT_EQ(exact.comm.reducer.wire, DType::kF32);
  EXPECT_EQ(low.optimizer.adamw.first_moment, MomentFormat::kBlockwise8Bit);
  EXPECT_EQ(low.optimizer.adamw.second_moment, MomentFormat::kBF16Stochastic);
  EXPECT_EQ(low.optimizer.adamw.master, MasterWeights::kNoneStochastic);
  EXPECT_EQ(low.optimizer.adamw.weight_rounding, WeightRounding::kNearest) << "there are no masters to round";
  EXPECT_EQ(low.comm.reducer.wire, DType::kBF16);
  EXPECT_EQ(kahan.optimizer.adamw.master, MasterWeights::kKahan);
}

TEST(SharedOptions, AreAsConfiguredInUniformPlansAndTheMostExactInFp32) {
  const SmallRun run("shared_options_uniform");
  const Config config = load_config(run.config_path(), {"optimizer.second_moment=8bit", "optimizer.master=kahan"});
  const auto places = planned_shared(config, DType::kBF16, kAll, 2);
  EXPECT_EQ(uniform_plan(places, DType::kBF16, "bf16"), (Plan{0, 2, 1, 1}));
  EXPECT_EQ(uniform_plan(places, DType::kBF16, "current"), (Plan{0, 2, 1, 1}));
  EXPECT_EQ(uniform_plan(places, DType::kBF16, "fp32"), (Plan{0, 0, 0, 0}));
  const auto against = references(config, DType::kBF16, places);
  ASSERT_EQ(against.size(), 2u);
  EXPECT_EQ(against[0].config.optimizer.adamw.second_moment, MomentFormat::kBlockwise8Bit);
  EXPECT_EQ(against[0].config.optimizer.adamw.master, MasterWeights::kKahan);
  EXPECT_EQ(against[1].config.optimizer.adamw.second_moment, MomentFormat::kF32) << "fp32 throughout";
  EXPECT_EQ(against[1].config.comm.reducer.wire, DType::kF32);
  EXPECT_EQ(against[1].config.precision.compute, DType::kF32);
}

TEST(SharedOptions, ThatCannotBeTriedStayAsConfigured) {
  const SmallRun run("shared_options_left");
  PlannedPlace place =
      planned_shared(load_config(run.config_path(), {"optimizer.first_moment=bf16"}), DType::kBF16, {kMoments}, 1)[0];
  leave_as_configured(place, "a reason");
  ASSERT_EQ(place.options.size(), 1u);
  EXPECT_EQ(place.options[0].name, "bf16");
  EXPECT_EQ(place.refusals, std::vector<std::string>{"optimizer.first_moment: a reason; it is as configured"});
}

TEST(SharedOptions, RefuseOtherKinds) {
  EXPECT_NO_THROW(require_kinds(kAll));
  EXPECT_THROW(require_kinds({"weights"}), ConfigError);
  EXPECT_THROW(require_kinds({kWire, kWire}), ConfigError);
}

}  // namespace
}  // namespace mantissa::testing
