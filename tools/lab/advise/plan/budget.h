// Budgets as they are given: "time=12ms", "time=90%", "memory=1.5GiB", "loss=0.01".
#pragma once

#include <string>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

// What per cent are of: a step in 16 bits throughout.
struct BudgetReference {
  double seconds = 0.0;
  double bytes = 0.0;
};

// A kind and a value. Time in s, ms, us or per cent, of a step; memory of a rank in bytes, KiB, MiB, GiB or per cent;
// loss in nats a token above fp32. A number without a unit is in seconds, bytes or nats. ConfigError that names what is
// possible.
struct BudgetText {
  Budget kind = Budget::kTime;
  double value = 0.0;        // in seconds, bytes or nats, or the share of the reference
  bool is_relative = false;  // given in per cent

  // The limit of a whole step.
  double limit(const BudgetReference& reference) const;
};
BudgetText parse_budget(const std::string& text);

}  // namespace mantissa
