// PlanAdvice: the precision of each layer, and of the formats that layers share, under a budget.
#pragma once

#include "tools/lab/advise/plan/damages.h"
#include "tools/lab/advise/plan/local_search.h"
#include "tools/lab/advise/plan/validation.h"
#include "tools/lab/advise/prediction.h"
#include "tools/lab/advise/search/solver.h"
#include "tools/run/report/report.h"

namespace mantissa {

struct StepCost {
  double seconds = 0.0;
  double bytes = 0.0;         // one rank
  double sent_bytes = 0.0;    // by a rank to others in a step
  double device_bytes = 0.0;  // memory of its device; 0: not known
  // Energy of a rank, the ends of Prediction's range; 0: not known. Plans are chosen by the lower end.
  double joules = 0.0, most_joules = 0.0;

  bool fits() const { return device_bytes <= 0.0 || bytes <= device_bytes; }
};

// A step of the configuration on the target.
StepCost step_cost(const Config& config, const Target& target, int ranks);

// A search that needs more than the numbers of the problem.
using PlanSearch = std::function<SearchResult(const PlanProblem& problem, const PlanGoal& goal,
                                              const std::vector<PlannedPlace>& places)>;

// The measure by which layers get precision: the measured loss, or a score of the sensitivity analysis.
enum class DamageScore : uint8_t { kLoss, kFisher, kHessian, kInformation, kEntropy };
std::string_view name(DamageScore score);                 // "loss", "fisher", "hessian", "mi", "entropy"
DamageScore parse_damage_score(const std::string& text);  // ConfigError lists them

struct PlanRequest {
  BudgetText budget;
  std::string solver = "knapsack";  // its plan is where the search among whole plans begins
  bool compare_solvers = false;     // runs the others too, but for the enumeration
  std::vector<std::string> recipes = {"current"};
  uint64_t seed = 1;
  int64_t most_wholes = 1 << 9;                // WholeSearch::most_plans
  double rest_damage = 0.0;                    // rest_damage()
  std::vector<SharedDamage> shared_damages{};  // all options of shared formats but the most exact
  PlanSearch own_search{};                     // if `solver` is none of solver_names()
  // Unless it is the loss, own_search allocates by it, and its plan is taken as it is: others would be chosen by loss.
  // They are where no allocation meets the budget as a whole.
  DamageScore damage = DamageScore::kLoss;

  // Probes for the sensitivity analysis.
  int64_t hessian_probes() const { return damage == DamageScore::kHessian ? SensitivityRequest().probes : 0; }
};

// A plan priced as a whole.
struct WholePlan {
  std::string name;  // "fp32", "plan"
  Plan choice;
  StepCost cost;
  // Nats above fp32 throughout: the rest damage and the sum of the options' damages.
  double damage = 0.0, damage_error = 0.0;

  PlanTotals totals() const {
    return {.seconds = cost.seconds, .bytes = cost.bytes, .damage = damage, .joules = cost.joules};
  }
};

struct PlanAdvice {
  // The model and device of the plans.
  Config base;
  Target target;
  int ranks = 1;
  DType low = DType::kBF16;
  std::vector<PlannedPlace> places;  // layers first, then shared formats
  PlanProblem problem;               // one decision for each place
  StepCost common;                   // part of every plan's cost
  double rest_damage = 0.0;
  PlanGoal goal;       // for sums of parts: `limit` excludes the common part of all plans
  double limit = 0.0;  // for a whole step
  DamageScore damage = DamageScore::kLoss;

  // Results of the search.
  std::vector<std::pair<std::string, SearchResult>> results;  // by solver, in sums of parts
  int64_t plans_priced = 0;                                   // as wholes; 0: an allocation was taken as it is
  bool is_optimum = false;                                    // these were all plans
  std::vector<WholePlan> uniform;                             // fp32, 16 bits, recipes
  ParetoFront front;                                          // in sums of parts
  // By rising time: the Pareto-optimal plans among some of the front, the chosen plan and the uniform plans.
  std::vector<WholePlan> front_plans;
  WholePlan plan;
  bool meets_budget = false;
  std::vector<std::string> reasons;  // by place
  Config config;                     // trains the plan

  // Results of its training.
  std::optional<PlanValidation> validation;   // against 16 bits and fp32
  int promotions = 0;                         // times that it gave options back because it was worse than promised
  std::optional<ReferenceResult> gave_way{};  // the first plan against 16 bits throughout, which took its place

  bool knows_energy() const { return common.joules > 0.0; }
  PlanGoal whole_goal() const { return {.budget = goal.budget, .limit = limit}; }
  // The limited quantity of a whole step.
  double limited(const WholePlan& one) const { return quantity(one.totals(), goal.quantities()[0]); }
  WholePlan priced(const std::string& name, const Plan& choice) const;
  // Makes this the plan.
  void take(const Plan& choice);
  // Whether the plan misses its purpose: its measured time exceeds that of 16 bits throughout, and a budget of time.
  bool exceeds_measured(const ReferenceResult& low) const;
  // Whether the plan misses the budget, by prediction or, in time, as measured.
  bool misses_budget() const;
  // Whether a plan that meets the budget does so at the upper end of its predicted time or energy as well. A roofline
  // has no upper end of time.
  bool meets_surely() const;
  // Whether plans meet the budget, but the device has no memory for any of them.
  bool lacks_memory() const;
  // The damage promised for runs on one rank: the plan's without the wire's.
  double promised_to_runs() const;
  // Whether the plan's damage relative to fp32 throughout exceeds the sum of its parts.
  bool breaks_promise(const ReferenceResult& exact) const;
};

// `places`: planned_layers() of the configuration, then planned_shared(). `sensitivity`: of the layers, with all of
// uniform_names() but the first. ConfigError for impossible requests.
PlanAdvice advise_plan(const PlanRequest& request, const Config& config, std::vector<PlannedPlace> places,
                       const SensitivityAnalysis& sensitivity, const Target& target, int ranks);

inline constexpr int kMostPromotions = 3;
// Trains a plan's configuration along with 16 bits and fp32 throughout: validate_plan().
using TrainPlan = std::function<PlanValidation(const Config& plan)>;
// Trains the plan. If it breaks its promise, or fails where a reference succeeds, it is promoted() and trained again.
// This ends when it keeps its promise, when no further promotion fits into device memory, or after kMostPromotions. A
// plan that exceeds_measured(), or stays worse than 16 bits throughout, is replaced by them if they meet the budget.
void try_plan(const TrainPlan& train, PlanAdvice& advice);

// At most so many items, evenly from one end to the other.
template <typename List>
List thinned(const List& list, size_t most) {
  const size_t count = std::min(most, list.size());
  List kept;
  for (size_t i = 0; i < count; ++i) kept.push_back(list[count == 1 ? 0 : i * (list.size() - 1) / (count - 1)]);
  return kept;
}

// ---- Allocation by a score, instead of the loss that the analysis measures (plan_run.cc).

// The harm of each option by the score, by place and option: the sum over its decisions, 0 for fp32.
//   fisher, hessian   the analysis's score; the Hessian's magnitude
//   mi                log2(bins) minus the mutual information of the exact and the lowered product, in bits
//   entropy           bits of the lowered product's histogram times the share of 32 bits that the format saves: a
//                     product with more information needs more bits
// An unknown score (attention, products too large to sample) is replaced by the largest of the same format. `places`
// are layers.
OptionValues score_damages(DamageScore score, const SensitivityAnalysis& analysis, DType low,
                           const std::vector<PlannedPlace>& places);
// Solves the problem with these harms in place of its damages, by the solver. The result's totals are the problem's.
SearchResult allocate(const std::string& solver, const PlanProblem& problem, const PlanGoal& goal,
                      const OptionValues& harms, uint64_t seed);

// ---- From a configuration to a plan (plan_run.cc).

struct PlanRunRequest {
  PlanRequest plan{};
  const Hardware* hardware = nullptr;  // nullptr: the present device, whose kernels are timed
  int ranks = 1;
  int rounds = 5;        // of timing kernels on the present device
  int64_t warm_up = 50;  // fp32 steps before damages are measured: initial weights reveal little
  int64_t batches = 4;
  std::vector<std::string> state = {kMoments, kMasters, kWire};  // shared formats to decide about
  ValidationOptions validation{};
  bool accepts_much = false;  // goes on however long it takes, and however much memory
};

// On the configuration's device, alone. Writes nothing. Says what it will take before it begins. ConfigError as for a
// training, and as require_time_for().
PlanAdvice find_plan(const PlanRunRequest& request, const std::string& title, const Config& config);

// ---- The work of finding and validating a plan, known before it begins (plan_effort.cc).

// Counted in training steps of the configuration; a loss alone counts as a third of one.
struct PlanEffort {
  int64_t decisions = 0;  // of the sensitivity analysis
  double warm_up_steps = 0;
  double layer_steps = 0;       // damages of layers
  double state_steps = 0;       // damages of formats that layers share
  double search_steps = 0;      // of the differentiable solver
  double validation_steps = 0;  // runs of the plan and beside it
  double turns = 0;             // of timing these side by side, each of a step and kTurnSeconds at least
  double bytes = 0;             // of this process, at its most

  double steps() const { return warm_up_steps + layer_steps + state_steps + search_steps + validation_steps + turns; }
  // At this time of a step; the timing of kernels comes on top, mostly less than a minute.
  double seconds(double of_step) const;
};

// `places`: as find_plan() has them. ConfigError as predict_memory_table().
PlanEffort plan_effort(const PlanRunRequest& request, const Config& config, const std::vector<PlannedPlace>& places);
// "about 412 steps of 0.21 s, 40 MiB of memory, 0:01:27 (h:mm:ss)".
std::string to_text(const PlanEffort& effort, double seconds_of_step);

// The errors name the largest costs and the options to reduce them. MemoryError if this machine computes and its
// memory, `total_bytes`, is too small. ConfigError beyond an hour.
void require_memory_for(const PlanEffort& effort, double total_bytes);
void require_time_for(const PlanEffort& effort, double seconds_of_step);

// Seconds of a training step from the session's point, by a forward and a backward pass. The session stays as it is.
// Collective.
double time_of_step(Session& session);

// ---- Views of a plan (plan_report.cc).

Json to_json(const PlanAdvice& advice);
ReportText to_text(const PlanAdvice& advice);
// A configuration for `mantissa train`, with the reasons as comments.
std::string to_plan_yaml(const PlanAdvice& advice, const std::string& source);

}  // namespace mantissa
