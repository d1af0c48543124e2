// PlanAdvice: the precision of each layer, and of what all share, under a budget, from what lowering does to the loss
// and what it saves.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/advise/plan/budget.h"
#include "tools/lab/advise/plan/plan_costs.h"
#include "tools/lab/advise/plan/plan_validation.h"
#include "tools/lab/advise/plan/shared_trials.h"
#include "tools/lab/advise/search/pareto_front.h"
#include "tools/lab/advise/search/plan_solver.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

// A search that needs more than the numbers of the problem.
using PlanSearch = std::function<SearchResult(const PlanProblem& problem, const PlanGoal& goal,
                                              const std::vector<PlannedPlace>& places)>;

struct PlanRequest {
  BudgetText budget;
  std::string solver = "knapsack";  // whose plan is taken; the others are compared with it
  std::vector<std::string> recipes = {"current"};
  uint64_t seed = 1;
  // Nats. Under a budget of time or memory, plans whose predicted losses differ by less are as good, and the fastest is
  // taken. A thousandth is a tenth of a per cent of perplexity, and less than what another seed makes.
  double tolerance = 1e-3;
  int64_t most_wholes = 1 << 9;  // plans that are priced as wholes: WholeSearch::most_plans
  double rest_damage = 0.0;      // what all that no plan decides about, in 16 bits, does to the loss of fp32 throughout
  std::vector<SharedDamage> shared_damages{};  // of every option of the shared formats but the most exact
  PlanSearch own_search{};                     // where `solver` names none of plan_solver_names()
};

// A plan, predicted as a whole.
struct WholePlan {
  std::string name;  // "fp32", "plan"
  StepCost cost;
  // Nats above fp32 throughout: of what no plan decides about, and of what the places may do alone, added up.
  double damage = 0.0, damage_error = 0.0;
};

struct PricedPlan {
  Plan plan;
  WholePlan whole;
};

struct PlanAdvice {
  DType low = DType::kBF16;
  bool of_absent_device = false;     // times are predicted alone
  std::vector<PlannedPlace> places;  // layers first, then shared formats
  PlanProblem problem;
  PlanGoal goal;       // of the parts: `limit` is less what all plans have in common
  double limit = 0.0;  // of a whole step
  double interaction =
      0.0;  // what plans like the chosen one take of the limited quantity beyond the sum of their parts
  std::vector<std::pair<std::string, SearchResult>> results;  // by solver
  SearchResult chosen;
  std::vector<std::string> reasons;  // by place
  double tolerance = 0.0;            // see PlanRequest
  int64_t plans_priced = 0;          // as wholes
  bool is_optimum = false;           // these are all plans that there are
  ParetoFront front;                 // of the sums of parts
  // By rising time: plans of that front, the chosen one and the uniform ones, priced as wholes, as far as none of them
  // beats another.
  std::vector<PricedPlan> front_plans;
  double rest_damage = 0.0;  // see PlanRequest
  StepCost common;           // what all plans have in common
  std::vector<WholePlan> uniform;
  WholePlan plan;
  Config config;  // that trains so

  std::optional<PlanValidation> validation;   // of the plan, where it was trained
  int promotions = 0;                         // times that it gave options back because it was worse than promised
  std::optional<ReferenceResult> gave_way{};  // to 16 bits throughout: what had been found of the plan before
};

// What 16 bits are in plans for the configuration: fp16 where it computes in that, else bf16.
DType low_of(const Config& config);
// Of formats that planned_layers() can take: what a sensitivity analysis must have tried.
std::vector<std::string> formats_to_try(DType low, const std::vector<std::string>& recipes);

// `places`: planned_layers() of the configuration, and planned_shared() behind them; `sensitivity` is of all of the
// former, in formats_to_try(). ConfigError for what is asked and impossible.
PlanAdvice advise_plan(const PlanRequest& request, const Config& config, std::vector<PlannedPlace> places,
                       const SensitivityAnalysis& sensitivity, const Target& target, int ranks);

// The quantity that the budget limits, of a whole step.
double limited(const PlanAdvice& advice, const WholePlan& plan);
// Another plan in place of the chosen one.
void take_plan(PlanAdvice& advice, const Plan& plan, const Config& config, const Target& target, int ranks);
// uniform_plan() in its place.
void take_uniform(PlanAdvice& advice, const std::string& option, const Config& config, const Target& target, int ranks);
// Whether the plan, as it was measured beside 16 bits throughout, is not what was asked for: slower than they are, and
// than a budget of time allows.
bool exceeds_measured(const PlanAdvice& advice, const ReferenceResult& low);
// Whether there are plans within the budget, but none that the device has the memory for.
bool lacks_memory(const PlanAdvice& advice);
// The damage that runs can be held to, which are of one rank: the plan's without that of a wire.
double promised_to_runs(const PlanAdvice& advice);
// Whether the plan, as it was trained beside fp32 throughout, does more damage than its parts promised.
bool breaks_promise(const PlanAdvice& advice, const ReferenceResult& exact);
// Whether 16 bits throughout meet the budget, on a device that has the memory for them.
bool fits_low(const PlanAdvice& advice);

// With tables; ends with a line feed.
std::string to_text(const PlanAdvice& advice);
nlohmann::json to_json(const PlanAdvice& advice);
// A configuration for `mantissa train`, with the reasons as comments.
std::string to_plan_yaml(const PlanAdvice& advice, const std::string& source);

}  // namespace mantissa
