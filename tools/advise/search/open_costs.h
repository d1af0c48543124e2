// Shared costs on the way through the units of a plan. From the first to the last unit that can pay it a shared cost is
// open and has a bit in the set of those that a partial plan has paid.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/advise/search/plan_units.h"

namespace mantissa {

class OpenCosts {
 public:
  // ConfigError where more than 64 are open at a time.
  explicit OpenCosts(const PlanUnits& units);

  uint64_t bit(int shared) const { return uint64_t{1} << slot_[shared]; }
  // Of those whose last payer is this unit.
  uint64_t closing(int unit) const { return closing_[unit]; }

 private:
  std::vector<int> slot_;
  std::vector<uint64_t> closing_;
};

}  // namespace mantissa
