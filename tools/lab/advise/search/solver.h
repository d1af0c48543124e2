// Solvers: from a PlanProblem and a budget to a plan. Each has a line in the table of solver.cc.
#pragma once

#include <functional>
#include <string_view>

#include "core/tensor/philox.h"
#include "tools/lab/advise/search/problem.h"

namespace mantissa {

struct SearchSettings {
  uint64_t seed = 1;              // for evolution, bayesian and reinforcement
  int64_t most_labels = 1 << 16;  // for knapsack; beyond that it is no longer exact
  int64_t most_plans = 1 << 22;   // enumeration, which refuses more
  int generations = 150;          // evolution, 64 plans each
  int evaluations = 400;          // bayesian
  int batches = 150;              // reinforcement, 64 plans each
};

struct SearchResult {
  Plan plan{};
  PlanTotals totals{};
  // If no plan meets the budget, `plan` is the best of the plans with the least excess.
  bool meets_budget = true;
};

// "enumeration", "knapsack", "greedy", "top_k", "evolution", "bayesian", "reinforcement".
std::vector<std::string_view> solver_names();
// The result does not depend on the order of the decisions. Every solver finds exactly whether the budget can be met.
// ConfigError for an unknown solver, and as check_problem() and check_goal().
SearchResult solve(std::string_view solver, const PlanProblem& problem, const PlanGoal& goal,
                   const SearchSettings& settings = {});

// Plans that no other plan beats in time, memory, damage and, where it is known, energy at once.
struct ParetoFront {
  std::vector<Plan> plans{};  // by rising time; one plan for equal totals
  // 0 if the front is complete. Else the front has, for every plan, one at most as slow, with at most this much more
  // damage, memory and energy.
  double damage_gap = 0, bytes_gap = 0, joules_gap = 0;
};
// Keeps at most `most_labels` partial plans (exact.cc). ConfigError as check_problem().
ParetoFront pareto_front(const PlanProblem& problem, int64_t most_labels = 1 << 12);

// Why a plan is as it is: one line for each decision, for instance
//   fp8: saves 1.2 ms (3.1 %) against fp32, costs 0.0004 nats; bf16 instead: +0.3 ms, -0.0003 nats
//   kept fp32: fp8 would cost 0.02 nats for 0.4 ms
//   kept fp32: nothing here saves time
// Savings are in the budget's quantity, and in time under one of loss. "Kept" is the least damaging option; per cent
// are of the plan in which all decisions keep theirs. "Instead" is the change after which the plan would be best.
// ConfigError as evaluate().
std::vector<std::string> plan_reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan);

// ---- For solvers. The problem is valid, its decisions are sorted by name, and some plan meets the budget. A found
// plan that does not is replaced by nearest_plan().

using Solver = Plan(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings);
Solver enumerate, knapsack, greedy, top_k, evolution, bayesian, reinforcement;  // functions

// The first of the options with the least of a quantity, for one decision and for all.
int least_option(const PlanDecision& decision, PlanQuantity what);
Plan least_plan(const PlanProblem& problem, PlanQuantity what);
// For each place in the longest list of options: the option there for every decision, or its last.
std::vector<Plan> uniform_plans(const PlanProblem& problem);
// The plan with the least of the limited quantity; of those the best.
Plan nearest_plan(const PlanProblem& problem, const PlanGoal& goal);
// The least of a sum over the decisions from each one on: 0 after the last.
std::vector<double> least_of_rest(const PlanProblem& problem, const std::function<double(const PlanOption&)>& part);

// Random numbers: the same for the same seed on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}

  uint32_t word();
  double uniform() { return word() * 0x1p-32; }  // [0, 1)
  // 0, ..., count - 1.
  int below(size_t count) { return static_cast<int>((uint64_t{word()} * static_cast<uint32_t>(count)) >> 32); }
  // An option by these probabilities, with the sum 1; never an impossible one.
  int option(const std::vector<double>& probabilities);

 private:
  uint64_t seed_ = 0, drawn_ = 0;
  PhiloxCounter words_{};
};

Plan random_plan(const PlanProblem& problem, Draws& draws);
// Decisions in random order take the option that needs least of the budget, until it is met or all decisions have.
void repair_budget(const PlanProblem& problem, const PlanGoal& goal, Plan& plan, Draws& draws);

}  // namespace mantissa
