// The solver against enumerated optima, and the Pareto front against its definition.
#include "tools/lab/advise/search/solver.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <limits>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/tools/lab/advise/search/random_problems.h"

namespace mantissa {
namespace {

using testing::budgets_of;
using testing::Damages;
using testing::enumerated;
using testing::error_of;
using testing::random_problem;
using testing::shuffled;
using testing::with_damages;

// ---- The solver.

TEST(Solver, DoesNotDependOnTheOrderOfDecisions) {
  for (uint64_t seed = 300; seed < 306; ++seed) {
    const PlanProblem problem = random_problem(seed, 8);
    std::vector<int> place;
    const PlanProblem other = shuffled(problem, seed, place);
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult a = solve(problem, goal), b = solve(other, goal);
      for (size_t i = 0; i < place.size(); ++i) ASSERT_EQ(a.plan[i], b.plan[place[i]]) << "seed " << seed;
      ASSERT_EQ(a.totals.seconds, b.totals.seconds);
      ASSERT_EQ(a.totals.damage, b.totals.damage);
    }
  }
}

// All options are alike.
TEST(Solver, TakesTheFirstOfEquals) {
  PlanProblem problem;
  for (int i = 0; i < 5; ++i) {
    const PlanOption same{.seconds = 1, .bytes = 1, .damage = 0.5, .joules = 1};
    PlanDecision decision{.name = fmt::format("d{}", i), .options = {same, same, same}};
    for (int o = 0; o < 3; ++o) decision.options[o].name = fmt::format("f{}", o);
    problem.push_back(decision);
  }
  for (const PlanQuantity budget :
       {PlanQuantity::kSeconds, PlanQuantity::kBytes, PlanQuantity::kDamage, PlanQuantity::kJoules}) {
    EXPECT_EQ(solve(problem, {.budget = budget, .limit = 5}).plan, Plan(5, 0));
    EXPECT_EQ(solve(problem, {.budget = budget, .limit = 1}).plan, Plan(5, 0));
  }
}

// One decision does a hundred times the damage of the others. A budget with room for hardly more than one decision in
// its most exact option must go to it.
TEST(Solver, KeepsASensitiveDecisionHighUnderATightBudget) {
  for (int sensitive = 0; sensitive < 10; ++sensitive) {
    PlanProblem problem;
    for (int i = 0; i < 10; ++i) {
      const double factor = i == sensitive ? 100 : 1;
      problem.push_back({fmt::format("blocks.{}.mlp.up", i),
                         {{.name = "fp32", .seconds = 4, .bytes = 4, .joules = 4},
                          {.name = "bf16", .seconds = 2, .bytes = 2, .damage = factor * (1 + 0.01 * i), .joules = 2},
                          {.name = "fp8", .seconds = 1, .bytes = 1, .damage = factor * (4 + 0.01 * i), .joules = 1}}});
    }
    // All need 10 in fp8; a limit of 13.5 has room for one in fp32.
    const Plan by_time = solve(problem, {.budget = PlanQuantity::kSeconds, .limit = 13.5}).plan;
    EXPECT_EQ(by_time[sensitive], 0) << "sensitive: " << sensitive;
    EXPECT_EQ(std::ranges::count(by_time, 0), 1);
    EXPECT_EQ(solve(problem, {.budget = PlanQuantity::kBytes, .limit = 13.5}).plan[sensitive], 0);
    EXPECT_EQ(solve(problem, {.budget = PlanQuantity::kJoules, .limit = 13.5}).plan[sensitive], 0);
    EXPECT_EQ(solve(problem, {.budget = PlanQuantity::kDamage, .limit = 40}).plan[sensitive], 0);
  }
}

TEST(Solver, SaysThatABudgetCannotBeMetAndWhatIsNearest) {
  const PlanProblem problem{{"a", {{.name = "bf16", .seconds = 4e-3}, {.name = "fp8", .seconds = 2e-3, .damage = 0.5}}},
                            {"b",
                             {{.name = "bf16", .seconds = 4e-3},
                              {.name = "fp8", .seconds = 2e-3, .damage = 0.5},
                              {.name = "other", .seconds = 2e-3, .damage = 0.25}}}};
  const SearchResult result = solve(problem, {.budget = PlanQuantity::kSeconds, .limit = 3e-3});
  EXPECT_FALSE(result.meets_budget);
  EXPECT_EQ(result.plan, (Plan{1, 2})) << "as fast as fp8 for both, with less damage";
  EXPECT_TRUE(solve(problem, {.budget = PlanQuantity::kSeconds, .limit = 4e-3}).meets_budget);
}

TEST(Solver, RefusesWhatIsNoNumber) {
  PlanProblem problem = random_problem(1, 4);
  problem[3].options[1].damage = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(error_of([&] { solve(problem, {.budget = PlanQuantity::kSeconds, .limit = 10}); }),
            "[plan] the damage of blocks.3.linear in format1 must be a finite number from 0 on, got nan; measure it "
            "again, or leave the option out");
  EXPECT_EQ(error_of([&] { solve(random_problem(1, 4), {.budget = PlanQuantity::kDamage, .limit = -1}); }),
            "[plan] a budget must be a finite number from 0 on, got -1; give seconds, bytes, nats or joules");
}

// 60 problems of up to 12 decisions, 30 budgets each. Compares plans, not only totals: both take the first of equals.
TEST(Solver, IsTheOptimum) {
  int met = 0, not_met = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const int decisions = seed <= 59 ? 1 + static_cast<int>(seed % 9) : 12;
    const PlanProblem problem = random_problem(seed, decisions);
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult best = enumerated(problem, goal), found = solve(problem, goal);
      ASSERT_EQ(found.plan, best.plan) << "seed " << seed << " budget " << static_cast<int>(goal.budget) << " limit "
                                       << goal.limit;
      ASSERT_EQ(rank(goal, found.totals), rank(goal, best.totals));
      ASSERT_EQ(found.meets_budget, best.meets_budget);
      ++(best.meets_budget ? met : not_met);
    }
  }
  EXPECT_GT(met, 800);
  EXPECT_GT(not_met, 100);
}

// Like measured numbers these are no dyadic fractions: sums differ in their last bits, plans do not.
TEST(Solver, IsTheOptimumOfSumsThatAreRounded) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    PlanProblem problem = random_problem(seed, 8);
    for (PlanDecision& decision : problem) {
      for (PlanOption& option : decision.options) {
        option.joules *= 1e-2 / 13;
        option.seconds *= 1e-3 / 3;
        option.bytes *= 1e9 / 7;
        option.damage *= 1e-4 / 11;
      }
    }
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult best = enumerated(problem, goal), found = solve(problem, goal);
      ASSERT_EQ(found.meets_budget, best.meets_budget);
      const double least = quantity(best.totals, goal.quantities()[1]);
      EXPECT_NEAR(quantity(found.totals, goal.quantities()[1]), least, 1e-12 * least) << "seed " << seed;
    }
  }
}

// Real damages are orders of magnitude apart, or sit in one place. Solver and enumeration add decisions in the same
// order, so excess, minimized and limited quantity are equal bit for bit. The quantities after them may depend on the
// rounding of partial sums.
TEST(Solver, IsTheOptimumWhereDamagesAreDecadesApart) {
  int met = 0;
  for (uint64_t seed = 600; seed < 640; ++seed) {
    const PlanProblem random = random_problem(seed, 4 + static_cast<int>(seed % 5));
    for (const Damages damages : {Damages::kOverDecades, Damages::kInOneDecision}) {
      const PlanProblem problem = with_damages(random, damages, seed);
      for (const PlanGoal& goal : budgets_of(problem, seed)) {
        const SearchResult best = enumerated(problem, goal), found = solve(problem, goal);
        ASSERT_EQ(found.meets_budget, best.meets_budget);
        const PlanRank least = rank(goal, best.totals), its = rank(goal, found.totals);
        for (size_t k = 0; k < 3; ++k) {
          ASSERT_EQ(its[k], least[k]) << "seed " << seed << " budget " << static_cast<int>(goal.budget) << " limit "
                                      << goal.limit;
        }
        ASSERT_EQ(found.gap, 0);
        met += best.meets_budget;
      }
    }
  }
  EXPECT_GT(met, 2000);
}

// Totals of the plan with the least sum of the minimized quantity and `price` times the limited one.
PlanTotals priced_plan(const PlanProblem& problem, const PlanGoal& goal, double price) {
  const PlanQuantity limited = goal.quantities()[0], least = goal.quantities()[1];
  PlanTotals totals;
  for (const PlanDecision& decision : problem) {
    totals += std::ranges::min(
        decision.options | std::views::transform(&PlanOption::totals), {},
        [&](const PlanTotals& option) { return quantity(option, least) + price * quantity(option, limited); });
  }
  return totals;
}

// 0, and every price of a change in priced_plan(): slightly higher, so that no options tie.
std::vector<double> prices_of(const PlanProblem& problem, const PlanGoal& goal) {
  const PlanQuantity limited = goal.quantities()[0], least = goal.quantities()[1];
  std::vector<double> prices = {0.0};
  for (const PlanDecision& decision : problem) {
    for (const PlanOption& from : decision.options) {
      for (const PlanOption& to : decision.options) {
        const double saved = quantity(from.totals(), limited) - quantity(to.totals(), limited);
        const double cost = quantity(to.totals(), least) - quantity(from.totals(), least);
        if (saved > 0 && cost > 0) prices.push_back(cost / saved * (1 + 1e-9));
      }
    }
  }
  return prices;
}

// The largest excess over the optimum that a search with few labels can have, in the minimized quantity.
//
// The search starts from the priced plan of the lowest price whose plan meets the budget. It only takes better plans.
// Let p be the plan of a price, and q any plan within the budget. By weak duality
//   least(p) - least(q) <= price (limited(q) - limited(p)) <= price (limit - limited(p)).
// least(p) rises with the price. So the bound holds for every price whose plan meets the budget.
double excess_bound(const PlanProblem& problem, const PlanGoal& goal) {
  double bound = std::numeric_limits<double>::infinity();
  for (const double price : prices_of(problem, goal)) {
    const PlanTotals plan = priced_plan(problem, goal, price);
    if (goal.is_met(plan)) bound = std::min(bound, price * (goal.tolerated() - quantity(plan, goal.budget)));
  }
  return bound;
}

// 200 decisions: more plans than can be counted.
TEST(Solver, MeetsTheBudgetNearTheOptimumWithFewLabels) {
  const PlanProblem problem = random_problem(7, 200);
  int thinned = 0;
  for (const PlanGoal& goal : budgets_of(problem, 7)) {
    const SearchResult exact = solve(problem, goal);
    if (!exact.meets_budget) continue;
    const PlanQuantity least = goal.quantities()[1];
    const SearchResult coarse = solve(problem, goal, 16);
    EXPECT_TRUE(coarse.meets_budget);
    const double excess = quantity(coarse.totals, least) - quantity(exact.totals, least);
    const double bound = excess_bound(problem, goal);
    EXPECT_GE(excess, 0);
    EXPECT_LE(excess, bound) << "budget " << static_cast<int>(goal.budget) << " limit " << goal.limit;
    EXPECT_EQ(exact.gap, 0);
    EXPECT_LE(excess, coarse.gap);
    thinned += coarse.gap > 0;
    std::printf("budget %d of %.5g: least %.5g, with 16 labels %.3g more, of %.3g at most, gap %.3g\n",
                static_cast<int>(goal.budget), goal.limit, quantity(exact.totals, least), excess, bound, coarse.gap);
  }
  EXPECT_GT(thinned, 10);
}

// ---- The Pareto front.

using Point = std::array<double, 4>;  // seconds, damage, bytes, joules

Point point_of(const PlanTotals& totals) { return {totals.seconds, totals.damage, totals.bytes, totals.joules}; }

bool is_no_worse(const Point& a, const Point& b) {
  return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2] && a[3] <= b[3];
}

PlanProblem without_energy(PlanProblem problem) {
  for (PlanDecision& decision : problem) {
    for (PlanOption& option : decision.options) option.joules = 0.0;
  }
  return problem;
}

std::vector<Point> all_points(const PlanProblem& problem) {
  std::vector<Plan> plans{{}};
  for (const PlanDecision& decision : problem) {
    std::vector<Plan> longer;
    for (const Plan& plan : plans) {
      for (int option = 0; option < std::ssize(decision.options); ++option) {
        longer.push_back(plan);
        longer.back().push_back(option);
      }
    }
    plans = std::move(longer);
  }
  std::vector<Point> points;
  for (const Plan& plan : plans) points.push_back(point_of(evaluate(problem, plan)));
  return points;
}

// A point that beats another comes before it in lexicographic order, and is on the front or beaten by a point on it. So
// each point is compared only with the front so far.
std::set<Point> undominated(const std::vector<Point>& points) {
  std::set<Point> front;
  for (const Point& point : std::set<Point>(points.begin(), points.end())) {
    const auto beats = [&](const Point& other) { return is_no_worse(other, point); };
    if (std::ranges::none_of(front, beats)) front.insert(point);
  }
  return front;
}

TEST(ParetoFront, HasEveryPlanThatNoneBeatsAndNoOther) {
  size_t plans = 0;
  for (uint64_t seed = 1; seed <= 32; ++seed) {
    const bool has_energy = seed > 16;  // a further quantity to compare plans by: fewer decisions
    const PlanProblem random = random_problem(seed, 1 + static_cast<int>(seed % (has_energy ? 6 : 9)));
    const PlanProblem problem = has_energy ? random : without_energy(random);
    const ParetoFront front = pareto_front(problem);
    std::set<Point> points;
    double last_seconds = 0;
    for (const Plan& plan : front.plans) {
      const Point point = point_of(evaluate(problem, plan));
      EXPECT_LE(std::exchange(last_seconds, point[0]), point[0]);
      points.insert(point);
    }
    EXPECT_EQ(points.size(), front.plans.size());
    EXPECT_EQ(points, undominated(all_points(problem))) << "seed " << seed;
    EXPECT_EQ(front.damage_gap, 0);
    EXPECT_EQ(front.bytes_gap, 0);
    EXPECT_EQ(front.joules_gap, 0);
    plans += front.plans.size();
  }
  EXPECT_GT(plans, 300u);
}

TEST(ParetoFront, CoversEveryPlanWithinTheGapsThatItNamesWhereItIsThinned) {
  for (uint64_t seed = 20; seed < 28; ++seed) {
    const bool has_energy = seed >= 24;
    const PlanProblem random = random_problem(seed, 9);
    const PlanProblem problem = has_energy ? random : without_energy(random);
    const ParetoFront front = pareto_front(problem, 24);
    EXPECT_GT(front.damage_gap + front.bytes_gap, 0);
    EXPECT_EQ(front.joules_gap > 0, has_energy);
    EXPECT_LE(front.plans.size(), 24u);
    for (const Point& point : all_points(problem)) {
      const auto covers = [&](const Plan& plan) {
        const Point own = point_of(evaluate(problem, plan));
        return is_no_worse(
            own, {point[0], point[1] + front.damage_gap, point[2] + front.bytes_gap, point[3] + front.joules_gap});
      };
      ASSERT_TRUE(std::ranges::any_of(front.plans, covers)) << "seed " << seed;
    }
    std::printf("front of %zu plans, off by at most %.3g in damage, %.3g in bytes, %.3g in joules\n",
                front.plans.size(), front.damage_gap, front.bytes_gap, front.joules_gap);
  }
}

}  // namespace
}  // namespace mantissa
