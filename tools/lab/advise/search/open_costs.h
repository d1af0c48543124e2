// Shared costs on the way through the units of a plan. From the first to the last unit that can pay it a shared cost is
// open and has a bit in the set of those that a partial plan has paid.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {

class OpenCosts {
 public:
  // A unit's option behind a partial plan that has paid some of the costs that are open.
  struct Step {
    PlanTotals cost{};  // with the shared costs that it is the first to pay
    uint64_t paid = 0;  // of those that are open behind the unit
  };

  // ConfigError where more than 64 are open at a time, or more than 4096 sets of them can be paid. The units must
  // outlive it.
  explicit OpenCosts(const PlanUnits& units);

  Step step(int unit, int option, uint64_t paid) const;
  // Sets that partial plans can have paid before a unit, in order; behind the last one it is the empty set alone.
  const std::vector<uint64_t>& sets(int unit) const { return sets_[unit]; }

 private:
  void assign_bits();

  const PlanUnits& units_;
  std::vector<uint64_t> bit_;      // by shared cost
  std::vector<uint64_t> closing_;  // by unit: of the costs whose last payer it is
  std::vector<std::vector<uint64_t>> sets_;
};

}  // namespace mantissa
