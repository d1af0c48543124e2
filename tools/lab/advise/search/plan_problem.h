// The choice of precision as a problem of numbers: decisions with options, what they cost and what they do to the loss.
// Nothing here knows models or formats; who measures or predicts fills it in, solvers (plan_solver.h) work on it.
//
// Times, bytes and damages of decisions are added up. What is not a sum of decisions is said by
//   groups:       decisions that take the same option, as the projections to queries, keys and values do;
//   shared costs: paid once if any of some (decision, option) pairs is chosen, as the cast of an activation that the
//                 forward product and that of the weight gradient both read.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

struct PlanOption {
  std::string name{};       // "fp32", "bf16", "fp8"
  double seconds = 0;       // of a step
  double bytes = 0;         // of memory
  double damage = 0;        // predicted increase of the loss, in its unit (nats)
  double damage_error = 0;  // its standard error
};

// The option that is listed first is preferred where options are alike in everything else: list the most exact first.
struct PlanDecision {
  std::string name{};  // "blocks.3.mlp.up fprop"; no other decision's
  std::vector<PlanOption> options{};
};

// Places in PlanProblem::decisions and in the options there.
struct PlanChoice {
  int decision = 0;
  int option = 0;
};

struct PlanSharedCost {
  std::string name{};  // "cast of blocks.3.mlp.up's input"
  double seconds = 0;
  double bytes = 0;
  std::vector<PlanChoice> payers{};  // paid once where at least one of them is chosen
};

struct PlanProblem {
  std::vector<PlanDecision> decisions{};
  std::vector<std::vector<int>> groups{};  // of decisions with options of the same names in the same order
  std::vector<PlanSharedCost> shared_costs{};
};

// An option for each decision, in the order of the decisions.
using Plan = std::vector<int>;

struct PlanTotals {
  double seconds = 0;
  double bytes = 0;
  double damage = 0;
  double damage_variance = 0;  // of the sum, as if damages had been measured independently

  PlanTotals& operator+=(const PlanTotals& other);
  double damage_error() const;
};

PlanTotals totals_of(const PlanOption& option);

// ConfigError naming the decision, group or shared cost where there are no decisions, names appear twice, options are
// missing, costs or damages are negative, NaN or Inf, or a place does not exist.
void check_problem(const PlanProblem& problem);

// What a plan costs. ConfigError where it has another number of decisions, an option that does not exist, or splits a
// group. The sums are made in the order of names, so that the order of the decisions does not change a bit of them.
PlanTotals evaluate(const PlanProblem& problem, const Plan& plan);

enum class PlanQuantity : uint8_t { kSeconds, kBytes, kDamage };
double quantity(const PlanTotals& totals, PlanQuantity what);

enum class Budget : uint8_t { kTime, kMemory, kLoss };

// With a budget of time or memory the damage is to be least, with one of loss the time.
struct PlanGoal {
  Budget budget = Budget::kTime;
  double limit = 0;  // seconds, bytes, or increase of the loss

  // The quantity that is limited, the one to be least, and the third.
  std::array<PlanQuantity, 3> quantities() const;
  // The limit, and what sums of doubles may be off by: 1e-12 of it.
  double tolerated() const { return limit * (1.0 + 1e-12); }
  bool is_met(const PlanTotals& totals) const { return quantity(totals, quantities()[0]) <= tolerated(); }
};

// ConfigError for a limit that is negative or not finite.
void check_goal(const PlanGoal& goal);

// What plans are compared by, the smaller the better, from the first number on: how far the budget is exceeded (0 where
// it is met), the quantity to be least, the limited one, the third.
std::array<double, 4> rank(const PlanGoal& goal, const PlanTotals& totals);

// Two or three digits with the quantity's unit: "1.2 ms", "340 MiB", "0.0004 nats".
std::string to_text(PlanQuantity what, double value);

}  // namespace mantissa
