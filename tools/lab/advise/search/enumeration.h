// Every plan, one after the other: the reference for the others.
#pragma once

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {

class Enumeration : public PlanSolver {
 public:
  explicit Enumeration(const SearchSettings& settings) : most_plans_(settings.most_plans) {}
  std::string_view name() const override { return "enumeration"; }

 protected:
  // ConfigError where there are more than SearchSettings::most_plans.
  Found search(const PlanUnits& units, const PlanGoal& goal) const override;

 private:
  int64_t most_plans_ = 0;
};

}  // namespace mantissa
