// Problems, budgets and reasons.
#include "tools/lab/advise/search/solver.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::error_of;

PlanProblem three_decisions() {
  return {{"q",
           {{.name = "bf16", .seconds = 2, .bytes = 20, .damage_error = 3, .joules = 7},
            {.name = "fp8", .seconds = 1, .bytes = 10, .damage = 0.5, .damage_error = 3, .joules = 5}}},
          {"k",
           {{.name = "bf16", .seconds = 2, .bytes = 20},
            {.name = "fp8", .seconds = 1, .bytes = 10, .damage = 0.25, .damage_error = 4}}},
          {"up",
           {{.name = "bf16", .seconds = 8, .bytes = 80, .joules = 30},
            {.name = "fp8", .seconds = 4, .bytes = 40, .joules = 11}}}};
}

TEST(PlanProblem, AddsUp) {
  const PlanProblem problem = three_decisions();
  const PlanTotals exact = evaluate(problem, {0, 0, 0}), low = evaluate(problem, {1, 1, 1});
  EXPECT_EQ(exact.seconds, 12);
  EXPECT_EQ(exact.bytes, 120);
  EXPECT_EQ(exact.damage, 0);
  EXPECT_EQ(exact.damage_error(), 3);
  EXPECT_EQ(exact.joules, 37);
  EXPECT_EQ(low.joules, 16);
  EXPECT_EQ(low.seconds, 6);
  EXPECT_EQ(low.bytes, 60);
  EXPECT_EQ(low.damage, 0.75);
  EXPECT_EQ(low.damage_error(), 5);
}

TEST(PlanProblem, RanksByExcessThenByWhatIsToBeLeast) {
  const PlanTotals totals{.seconds = 2, .bytes = 3, .damage = 5, .joules = 11};
  EXPECT_EQ(rank({.budget = PlanQuantity::kSeconds, .limit = 2}, totals), (PlanRank{0, 5, 2, 3, 11}));
  EXPECT_EQ(rank({.budget = PlanQuantity::kSeconds, .limit = 1.5}, totals), (PlanRank{0.5, 5, 2, 3, 11}));
  EXPECT_EQ(rank({.budget = PlanQuantity::kBytes, .limit = 4}, totals), (PlanRank{0, 5, 3, 2, 11}));
  EXPECT_EQ(rank({.budget = PlanQuantity::kDamage, .limit = 4}, totals), (PlanRank{1, 2, 5, 3, 11}));
  EXPECT_EQ(rank({.budget = PlanQuantity::kJoules, .limit = 10.5}, totals), (PlanRank{0.5, 5, 11, 2, 3}));
}

// A budget made by adding the same numbers in another order is met.
TEST(PlanProblem, ToleratesTheRoundingOfSums) {
  const PlanGoal goal{.budget = PlanQuantity::kSeconds, .limit = 0.3};
  EXPECT_TRUE(goal.is_met({.seconds = 0.1 + 0.2}));
  EXPECT_FALSE(goal.is_met({.seconds = 0.3 + 1e-11}));
}

template <typename F>
std::string error_with(const F& change) {
  PlanProblem problem = three_decisions();
  change(problem);
  return error_of([&] { check_problem(problem); });
}

TEST(PlanProblem, NamesWhatIsWrongWithIt) {
  EXPECT_EQ(error_of([] { check_problem({}); }), "[plan] there must be at least one decision, got none");
  EXPECT_EQ(error_with([](PlanProblem& p) { p[1].name = "q"; }),
            "[plan] there are two decisions q; give them different names");
  EXPECT_EQ(error_with([](PlanProblem& p) { p[2].options.clear(); }),
            "[plan] up must have at least one option, got none");
  EXPECT_EQ(error_with([](PlanProblem& p) { p[2].options[1].name = "bf16"; }),
            "[plan] up has the option bf16 twice; give options different names");
  EXPECT_EQ(error_with([](PlanProblem& p) { p[2].options[1].seconds = -1; }),
            "[plan] the seconds of up in fp8 must be a finite number from 0 on, got -1; measure it again, or leave the "
            "option out");
  EXPECT_EQ(error_with([](PlanProblem& p) { p[0].options[0].bytes = 1.0 / 0.0; }),
            "[plan] the bytes of q in bf16 must be a finite number from 0 on, got inf; measure it again, or leave the "
            "option out");
  EXPECT_EQ(error_with([](PlanProblem& p) { p[1].options[1].damage_error = -4; }),
            "[plan] the damage's standard error of k in fp8 must be a finite number from 0 on, got -4; measure it "
            "again, or leave the option out");
}

TEST(PlanProblem, AQuantityHasThreeDigitsAndAUnitOfItsSize) {
  using enum PlanQuantity;
  EXPECT_EQ(to_text(kSeconds, 0.605771), "606 ms");
  EXPECT_EQ(to_text(kSeconds, 0.99951), "1 s");
  EXPECT_EQ(to_text(kSeconds, 12.345), "12.3 s");
  EXPECT_EQ(to_text(kSeconds, 4e-6), "0.004 ms");
  EXPECT_EQ(to_text(kBytes, 340.0 * 1024 * 1024), "340 MiB");
  EXPECT_EQ(to_text(kBytes, 1.5 * 1024 * 1024 * 1024), "1.5 GiB");
  EXPECT_EQ(to_text(kJoules, 0.0012), "1.2 mJ");
  EXPECT_EQ(to_text(kJoules, 658.2), "658 J");
  EXPECT_EQ(to_text(kJoules, -4321.0), "-4.32 kJ");
  EXPECT_EQ(to_text(kDamage, 0.0004), "0.0004 nats");
}

TEST(PlanProblem, QuantitiesThatDifferGetTheDigitsToTellThemApart) {
  using enum PlanQuantity;
  using Texts = std::pair<std::string, std::string>;
  constexpr double kMiB = 1024.0 * 1024.0;
  EXPECT_EQ(distinct_texts(kBytes, 0.99842 * kMiB, 0.99791 * kMiB), Texts("0.9984 MiB", "0.9979 MiB"));
  EXPECT_EQ(distinct_texts(kSeconds, 0.2, 0.1), Texts("200 ms", "100 ms"));
  EXPECT_EQ(distinct_texts(kDamage, 0.00101, 0.00102), Texts("0.00101 nats", "0.00102 nats"));
  EXPECT_EQ(distinct_texts(kJoules, 2.0, 2.0), Texts("2 J", "2 J"));
  EXPECT_EQ(distinct_texts(kSeconds, 1e-3, std::nextafter(1e-3, 1.0)).first, "1 ms") << "no more digits than there are";
}

TEST(PlanProblem, RefusesPlansThatItCannotHave) {
  const PlanProblem problem = three_decisions();
  const auto error_for = [&](const Plan& plan) { return error_of([&] { evaluate(problem, plan); }); };
  EXPECT_EQ(error_for({0, 0}), "[plan] a plan must have an option for each of 3 decisions, got 2");
  EXPECT_EQ(error_for({0, 0, 2}), "[plan] up has 2 options, counted from 0; the plan takes 2");
  EXPECT_EQ(error_for({0, -1, 0}), "[plan] k has 2 options, counted from 0; the plan takes -1");
}

// ---- Budgets.

constexpr PlanTotals kLow{.seconds = 0.2, .bytes = 1000.0, .joules = 50.0};

TEST(BudgetText, TakesUnits) {
  EXPECT_DOUBLE_EQ(parse_budget("time=12ms").limit(kLow), 0.012);
  EXPECT_DOUBLE_EQ(parse_budget("time=0.5").limit(kLow), 0.5);
  EXPECT_DOUBLE_EQ(parse_budget("time=3us").limit(kLow), 3e-6);
  EXPECT_DOUBLE_EQ(parse_budget("memory=1.5GiB").limit(kLow), 1.5 * 1024 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(parse_budget("memory=2e6").limit(kLow), 2e6);
  EXPECT_DOUBLE_EQ(parse_budget("loss=0.01").limit(kLow), 0.01);
  EXPECT_EQ(parse_budget("loss=0.01nats").kind, PlanQuantity::kDamage);
  EXPECT_EQ(parse_budget("energy=12J").kind, PlanQuantity::kJoules);
  EXPECT_DOUBLE_EQ(parse_budget("energy=12J").limit(kLow), 12.0);
  EXPECT_DOUBLE_EQ(parse_budget("energy=2.5").limit(kLow), 2.5);
  EXPECT_DOUBLE_EQ(parse_budget("energy=1.5kJ").limit(kLow), 1500.0);
  EXPECT_DOUBLE_EQ(parse_budget("energy=40mJ").limit(kLow), 0.04);
}

TEST(BudgetText, TakesPerCentOfThe16BitStep) {
  EXPECT_DOUBLE_EQ(parse_budget("time=90%").limit(kLow), 0.18);
  EXPECT_DOUBLE_EQ(parse_budget("memory=150%").limit(kLow), 1500.0);
  EXPECT_DOUBLE_EQ(parse_budget("energy=80%").limit(kLow), 40.0);
}

TEST(BudgetText, RefusesOtherTexts) {
  for (const std::string text :
       {"", "time", "time=", "time=fast", "time=-1ms", "time=0", "time=1GiB", "time=nan", "time=inf", "memory=1GB",
        "loss=5%", "energy=5W", "energy=1ms", "speed=1", "time=1ms2", "memory=1e300GiB"}) {
    const std::string error = error_of([&] { parse_budget(text); });
    EXPECT_NE(error.find("got '" + text + "'"), std::string::npos) << error;
  }
}

// ---- Reasons.

TEST(PlanReasons, SayWhatAnOptionSavesAndCostsAndWhatWouldComeNext) {
  const PlanProblem problem{{"up",
                             {{.name = "fp32", .seconds = 8e-3},
                              {.name = "bf16", .seconds = 4e-3, .damage = 1e-4},
                              {.name = "fp8", .seconds = 2e-3, .damage = 4e-4}}},
                            {"head",
                             {{.name = "fp32", .seconds = 8e-3},
                              {.name = "bf16", .seconds = 6e-3, .damage = 0.02},
                              {.name = "fp8", .seconds = 5e-3, .damage = 0.5}}},
                            {"norm", {{.name = "fp32", .seconds = 1e-3}}}};
  const Plan plan{2, 0, 0};
  EXPECT_EQ(plan_reasons(problem, {.budget = PlanQuantity::kSeconds, .limit = 14e-3}, plan),
            (std::vector<std::string>{
                "fp8: saves 6 ms (35.3 %) against fp32, costs 0.0004 nats; bf16 instead: +2 ms, -0.0003 nats",
                "kept fp32: bf16 would cost 0.02 nats for 2 ms", "kept fp32: nothing here saves time"}));
  EXPECT_EQ(plan_reasons(problem, {.budget = PlanQuantity::kSeconds, .limit = 12e-3}, plan)[0],
            "fp8: saves 6 ms (35.3 %) against fp32, costs 0.0004 nats; bf16 instead would exceed the budget by 1 ms");
  EXPECT_EQ(plan_reasons(problem, {.budget = PlanQuantity::kBytes, .limit = 0}, plan)[1],
            "kept fp32: nothing here saves memory");
}

TEST(PlanReasons, SpeakOfEnergyUnderABudgetOfEnergy) {
  const PlanProblem problem{{"up",
                             {{.name = "bf16", .seconds = 4e-3, .joules = 3e-3},
                              {.name = "fp8", .seconds = 5e-3, .damage = 4e-4, .joules = 1.8e-3}}},
                            {"head",
                             {{.name = "bf16", .seconds = 8e-3, .joules = 3e-3},
                              {.name = "fp8", .seconds = 5e-3, .damage = 0.5, .joules = 2e-3}}},
                            {"norm", {{.name = "fp32", .seconds = 1e-3, .joules = 6e-3}}}};
  EXPECT_EQ(
      plan_reasons(problem, {.budget = PlanQuantity::kJoules, .limit = 11e-3}, {1, 0, 0}),
      (std::vector<std::string>{
          "fp8: saves 1.2 mJ (10.0 %) against bf16, costs 0.0004 nats; bf16 instead would exceed the budget by 1 mJ",
          "kept bf16: fp8 would cost 0.5 nats for 1 mJ", "kept fp32: nothing here saves energy"}));
}

TEST(PlanReasons, NameErrorsOfDamagesAndWhatAnOptionAdds) {
  const PlanProblem problem{{"q",
                             {{.name = "bf16", .seconds = 1e-3, .damage_error = 3e-5},
                              {.name = "fp8", .seconds = 3e-3, .damage = 0.25, .damage_error = 4e-5}}}};
  EXPECT_EQ(plan_reasons(problem, {.budget = PlanQuantity::kSeconds, .limit = 5e-3}, {1})[0],
            "fp8: adds 2 ms (200.0 %) against bf16, costs 0.25 nats (+-5e-05); bf16 instead: -2 ms, -0.25 nats");
}

// Costs count relative to the least of their decision.
TEST(PlanReasons, HaveNoShareOfPartsThatCostNothing) {
  const PlanProblem problem{{"q", {{.name = "fp32"}, {.name = "bf16", .seconds = 25e-5, .damage = 0.25}}}};
  EXPECT_EQ(plan_reasons(problem, {.budget = PlanQuantity::kSeconds, .limit = 5e-3}, {1})[0],
            "bf16: adds 0.25 ms against fp32, which takes the least time, costs 0.25 nats; fp32 instead: -0.25 ms, "
            "-0.25 nats");
}

}  // namespace
}  // namespace mantissa
