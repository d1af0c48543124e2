// The choice of precisions as numbers: decisions with options, the time, memory and energy of each option, and its
// damage to the loss. Nothing here knows models or formats. The totals of a plan are sums over its options.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mantissa {

struct PlanTotals {
  double seconds = 0;          // a step
  double bytes = 0;            // memory
  double damage = 0;           // predicted increase of the loss, nats
  double damage_variance = 0;  // as if the damages had been measured independently
  double joules = 0;           // a step; all are 0 where energy is not known

  PlanTotals& operator+=(const PlanTotals& other) {
    seconds += other.seconds;
    bytes += other.bytes;
    damage += other.damage;
    damage_variance += other.damage_variance;
    joules += other.joules;
    return *this;
  }
  double damage_error() const;  // standard error
};

struct PlanOption {
  std::string name{};  // "fp32", "bf16", "fp8"
  double seconds = 0, bytes = 0, damage = 0, damage_error = 0, joules = 0;
  double backward_damage = 0;  // its part by backward products, after one update

  PlanTotals totals() const { return {seconds, bytes, damage, damage_error * damage_error, joules}; }
};

// Solvers prefer the first of options that are alike in everything else: list the most exact first.
struct PlanDecision {
  std::string name{};  // "blocks.3.mlp.up fprop"; unique
  std::vector<PlanOption> options{};
};

using PlanProblem = std::vector<PlanDecision>;
using Plan = std::vector<int>;  // an option for each decision

// ConfigError naming the decision: no decisions, a duplicate name, no options, or a cost or damage that is negative,
// NaN or Inf.
void check_problem(const PlanProblem& problem);
// Sums over the plan. ConfigError for a plan that does not go with the problem.
PlanTotals evaluate(const PlanProblem& problem, const Plan& plan);

enum class PlanQuantity : uint8_t { kSeconds, kBytes, kDamage, kJoules };
inline constexpr int kPlanQuantities = 4;
inline double quantity(const PlanTotals& totals, PlanQuantity what) {
  constexpr double PlanTotals::*kMembers[kPlanQuantities] = {&PlanTotals::seconds, &PlanTotals::bytes,
                                                             &PlanTotals::damage, &PlanTotals::joules};
  return totals.*kMembers[static_cast<size_t>(what)];
}
std::string_view name(PlanQuantity what);  // "time", "memory", "loss", "energy"
// At most so many digits, one less of nats, and the unit: "1.2 ms", "340 MiB", "0.0004 nats", "12 mJ".
std::string to_text(PlanQuantity what, double value, int digits = 3);
// Both, with enough digits to differ.
std::pair<std::string, std::string> distinct_texts(PlanQuantity what, double a, double b);

// Limits one quantity and minimizes another: time under a budget of loss, damage under the others.
struct PlanGoal {
  PlanQuantity budget = PlanQuantity::kSeconds;
  double limit = 0;  // seconds, bytes, nats or joules

  // The limited quantity, the minimized one, the others.
  std::array<PlanQuantity, kPlanQuantities> quantities() const {
    using enum PlanQuantity;
    if (budget == kDamage) return {kDamage, kSeconds, kBytes, kJoules};
    return {budget, kDamage, budget == kSeconds ? kBytes : kSeconds, budget == kJoules ? kBytes : kJoules};
  }
  // The cost that options save: the budget's quantity; time under a budget of loss.
  PlanQuantity cost() const { return budget == PlanQuantity::kDamage ? PlanQuantity::kSeconds : budget; }
  // The limit, and 1e-12 of it for the rounding of sums.
  double tolerated() const { return limit * (1.0 + 1e-12); }
  bool is_met(const PlanTotals& totals) const { return quantity(totals, budget) <= tolerated(); }
};

// ConfigError for a limit that is negative or not finite.
void check_goal(const PlanGoal& goal);

// Plans compare by these, smaller first: the excess over the budget, the minimized quantity, the limited one, the
// others.
using PlanRank = std::array<double, kPlanQuantities + 1>;
PlanRank rank(const PlanGoal& goal, const PlanTotals& totals);

// A budget as users write it: time in s, ms, us or %; memory of a rank in bytes, KiB, MiB, GiB or %; loss in nats a
// token above fp32; energy of a rank in a step in J, kJ, mJ or %. Per cent are of a step in 16 bits throughout.
struct BudgetText {
  PlanQuantity kind = PlanQuantity::kSeconds;
  double value = 0;          // seconds, bytes, nats or joules; or a share of the 16-bit step
  bool is_relative = false;  // given in per cent

  double limit(const PlanTotals& low) const;  // `low`: the 16-bit step
};
// "time=12ms", "time=90%", "memory=1.5GiB", "loss=0.01", "energy=80%". ConfigError lists what is possible.
BudgetText parse_budget(const std::string& text);

}  // namespace mantissa
