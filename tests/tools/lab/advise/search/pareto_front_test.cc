#include "tools/lab/advise/search/pareto_front.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include "tests/tools/lab/advise/search/random_problems.h"
#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {
namespace {

using testing::random_problem;
using Point = std::array<double, 3>;  // seconds, damage, bytes

Point point_of(const PlanTotals& totals) { return {totals.seconds, totals.damage, totals.bytes}; }

bool is_no_worse(const Point& a, const Point& b) { return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2]; }

std::vector<Point> all_points(const PlanProblem& problem) {
  const PlanUnits units(problem);
  std::vector<UnitPlan> plans{{}};
  for (int u = 0; u < units.size(); ++u) {
    std::vector<UnitPlan> longer;
    for (const UnitPlan& plan : plans) {
      for (int option = 0; option < units.options(u); ++option) {
        longer.push_back(plan);
        longer.back().push_back(option);
      }
    }
    plans = std::move(longer);
  }
  std::vector<Point> points;
  for (const UnitPlan& plan : plans) points.push_back(point_of(evaluate(problem, units.plan_of(plan))));
  return points;
}

// By definition, from all plans.
std::set<Point> undominated(const std::vector<Point>& points) {
  std::set<Point> front;
  for (const Point& point : points) {
    const auto beats = [&](const Point& other) { return other != point && is_no_worse(other, point); };
    if (std::ranges::none_of(points, beats)) front.insert(point);
  }
  return front;
}

TEST(ParetoFront, HasEveryPlanThatNoneBeatsAndNoOther) {
  size_t plans = 0;
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    const PlanProblem problem = random_problem(seed, 1 + static_cast<int>(seed % 9));
    const ParetoFront front = pareto_front(problem);
    std::set<Point> points;
    for (size_t i = 0; i < front.plans.size(); ++i) {
      points.insert(point_of(evaluate(problem, front.plans[i].plan)));
      EXPECT_LE(front.plans[i == 0 ? 0 : i - 1].totals.seconds, front.plans[i].totals.seconds);
    }
    EXPECT_EQ(points.size(), front.plans.size());
    EXPECT_EQ(points, undominated(all_points(problem))) << "seed " << seed;
    EXPECT_EQ(front.damage_gap, 0);
    EXPECT_EQ(front.bytes_gap, 0);
    plans += front.plans.size();
  }
  EXPECT_GT(plans, 300u);
}

TEST(ParetoFront, CoversEveryPlanWithinTheGapsThatItNamesWhereItIsThinned) {
  for (uint64_t seed = 20; seed < 24; ++seed) {
    const PlanProblem problem = random_problem(seed, 9);
    const ParetoFront front = pareto_front(problem, 24);
    EXPECT_GT(front.damage_gap + front.bytes_gap, 0);
    EXPECT_LE(front.plans.size(), 24u);
    for (const Point& point : all_points(problem)) {
      const auto covers = [&](const FrontPlan& plan) {
        const Point own = point_of(plan.totals);
        return is_no_worse(own, {point[0], point[1] + front.damage_gap, point[2] + front.bytes_gap});
      };
      ASSERT_TRUE(std::ranges::any_of(front.plans, covers)) << "seed " << seed;
    }
    std::printf("front of %zu plans, off by at most %.3g in damage, %.3g in bytes\n", front.plans.size(),
                front.damage_gap, front.bytes_gap);
  }
}

}  // namespace
}  // namespace mantissa
