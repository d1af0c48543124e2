// PlanAdvice: the precision of each layer, and of the formats that layers share, under a budget.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tools/lab/advise/plan/places.h"
#include "tools/lab/advise/prediction.h"
#include "tools/lab/advise/search/problem.h"
#include "tools/lab/advise/search/solver.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/lab/experiment/step_turns.h"
#include "tools/run/report/report.h"
#include "tools/train/checkpoint.h"

namespace mantissa {

// ---- Damages: the effects of options on the loss, measured from one point of a training (damages.cc).
//
// A sensitivity analysis measures layers. A pass does not show the formats that layers share: 8-bit moments or missing
// masters affect the updates, and add up from step to step. Short trainings from the point measure these, with one
// format lowered at a time.

struct SharedTrials {
  int64_t windows = 4;      // each starts from the point with its own data; at least 2
  int64_t steps = 10;       // in a window
  int64_t evaluations = 2;  // batches after a window, over which its loss is averaged
  int ranks = 1;            // as threads of this process, if there are several
  double fp16_scale = 1.0;  // loss scale if `low` is fp16: a power of two
};

// The loss of an option, in nats, relative to the same training with the most exact option of every place; a mean over
// windows. NaN if a step was not applied or a loss was not finite.
struct SharedDamage {
  std::string place, option;
  Estimate loss;
};

// Tries all options but the most exact of the shared formats among the places. Layers compute in `low`, or in fp32 if
// they have no such option, at the peak learning rate, where formats matter most. Trainings run one after the other,
// each with its own model. Returns nothing if the baseline training fails. `communicator`: of this process alone.
std::optional<std::vector<SharedDamage>> try_shared(const Config& config, DType low,
                                                    const std::vector<PlannedPlace>& places, const HeldState& point,
                                                    const SharedTrials& trials, Communicator& communicator);
// The number of these options.
int64_t options_to_try(const std::vector<PlannedPlace>& places);
// Each rank of a trial has a model of its own.
inline constexpr int kMostTrialRanks = 8;
// Ranks of the trials for a training on so many: the smallest factor of `ranks` above 1, or 1 without a choice of a
// wire.
int ranks_of_trials(const std::vector<PlannedPlace>& places, int ranks);
// try_shared() from the session's point, for a training on trials.ranks. Frees the session's model meanwhile to make
// room. Places that cannot be tried stay as configured.
std::vector<SharedDamage> shared_damages(const Config& config, DType low, SharedTrials trials,
                                         std::vector<PlannedPlace>& places, std::optional<Session>& session,
                                         Communicator& communicator);

// The damage, in 16 bits, of everything that no plan decides: mean over batches plus a standard error. `session` is in
// in_exact_precision(). ConfigError if the damage is not finite.
double rest_damage(const Config& config, DType low, const std::vector<PlannedPlace>& layers, int64_t batches,
                   Session& session);

// Runs training steps of the session. Returns whether all that had a target were applied. Collective.
bool train_steps(Session& session, int64_t steps);

// The analysis's findings about a decision of its own.
const DecisionScores& scores_of(const SensitivityAnalysis& analysis, const PrecisionDecision& decision);

// The known damages of all places.
struct KnownDamages {
  DType low = DType::kBF16;
  const SensitivityAnalysis& layers;
  const std::vector<SharedDamage>& shared;

  // `sum`: the mean plus its standard error, so that poorly known damages do not count as harmless. `error`: the
  // standard error. A falling loss counts as 0: it is noise, or luck. Nothing if the option overflows or could not be
  // tried. `backward`: the part of the sum by backward products, after one update.
  struct Damage {
    double sum = 0.0, error = 0.0, backward = 0.0;
  };
  std::optional<Damage> of(const PlannedPlace& place, const PlaceOption& option) const;
};
// Removes the options without a known damage.
void keep_known(std::vector<PlannedPlace>& places, const KnownDamages& damages);

// ---- Local searches: among plans priced as wholes, and from a plan back to less damage (local_search.cc).

// Sums of option costs ignore the casts shared by neighbours, and that only memory at the step's peak counts. The
// optimum of the sums is near the optimum of the wholes, so this search starts there.
struct WholeSearch {
  std::vector<int> options{};  // their number for each decision
  PlanGoal goal{};
  // Unless the budget is one of loss: plans within this of the least damage count as equal, and the fastest is taken.
  double tolerance = 0.0;
  double most_bytes = std::numeric_limits<double>::infinity();  // device memory, in addition to the budget
  std::vector<Plan> starts{};                                   // at least one
  std::function<PlanTotals(const Plan&)> price{};               // price of a whole plan
  int64_t most_plans = 1 << 9;                                  // to price, besides the starts
};

struct FoundWhole {
  Plan plan{};
  PlanTotals totals{};
  int64_t plans_priced = 0;
  bool is_optimum = false;  // every plan was priced
};

// The best of all plans, if no more than most_plans exist. Otherwise goes from the best start to better plans, changing
// a decision at a time and then pairs, until none is better or enough plans were priced. With a tolerance, searches
// first for the least damage, then among equally good plans, each with half of the plans. Plans that need more than
// most_bytes rank last.
FoundWhole search_wholes(const WholeSearch& search);

// Promotion: changes decisions to less damaging options until at most half of the plan's predicted damage is left. Each
// change wins the most predicted loss for its seconds. Nothing if the plan has no damage to reduce.
std::optional<Plan> promoted(const PlanProblem& problem, const Plan& plan);

// ---- Validation: trains a plan along with 16 bits and fp32 throughout, from the same seeds, until it is known whether
// the plan is as good (validation.cc).

struct ValidationOptions {
  int64_t steps = 100;                                // most steps of each run
  int64_t most_seeds = 8;                             // at least kFirstLook; 0: no validation
  LossMargin margin{};                                // of equal losses
  int64_t time_pairs = StepTimeOptions().most_pairs;  // most pairs of step times; 0: losses only
  double time_margin = 0.02;                          // between equal step times, relative
  double level = 0.95;
};
inline constexpr int64_t kFirstLook = 3;  // pairs

// The plan against a reference.
struct ReferenceResult {
  std::string name;
  double margin = 0.0;                   // nats; the mean over pairs
  std::string why{};                     // the runs are too short to show that a loss is small: too_short()
  std::string outlier{};                 // describes a seed that stands_apart() and counts all the same; may be empty
  std::optional<MeanDifference> loss{};  // final losses, plan - reference; nothing if no pair of runs succeeded
  ComparisonVerdict loss_verdict = ComparisonVerdict::kInconclusive;
  std::optional<MeanDifference> log_time{};  // step times, ln(plan / reference)
  ComparisonVerdict time_verdict = ComparisonVerdict::kInconclusive;
  // Whether the runs show a loss of at most so many nats.
  bool is_within(double nats) const { return why.empty() && loss && loss->interval && loss->interval->high <= nats; }
};

struct PlanValidation {
  int64_t seeds = 0;      // that were run
  int64_t steps = 0;      // in each run
  std::string failure{};  // why a run of the plan failed; then references that succeed with its seed are better
  // The source of step times: compare_step_times(), or else the medians of the runs, if memory does not hold all models
  // at once.
  bool has_turns = true;
  std::vector<ReferenceResult> against{};
  std::optional<MeanDifference> low_loss{};  // of 16 bits, as the first reference, - fp32; nothing if a run failed
};

// The references of plans: `low` with shared formats as configured, then fp32 with the most exact ones.
std::vector<Candidate> references(const Config& config, DType low, const std::vector<PlannedPlace>& places);

// Trains the plan and the references seed by seed, in turns so that each begins equally often, until all losses are
// decided or no seeds are left; then times their steps. A reference that fails is inconclusive. Collective.
PlanValidation validate_plan(const Config& plan, const std::vector<Candidate>& references,
                             const ValidationOptions& options, Communicator& communicator);

struct StepCost {
  double seconds = 0.0;
  double bytes = 0.0;         // one rank
  double sent_bytes = 0.0;    // by a rank to others in a step
  double device_bytes = 0.0;  // memory of its device; 0: not known
  // Energy of a rank, the ends of Prediction's range; 0: not known. Plans are chosen by the lower end.
  double joules = 0.0, most_joules = 0.0;
  std::string launches{};  // launches_text(), of an absent device

  bool fits() const { return device_bytes <= 0.0 || bytes <= device_bytes; }
};

// A step of the configuration on the target.
StepCost step_cost(const Config& config, const Target& target, int ranks);

// A search by other damages than the problem's.
using PlanSearch = std::function<SearchResult(const PlanProblem& problem, const PlanGoal& goal,
                                              const std::vector<PlannedPlace>& places)>;

// The measure by which layers get precision: the measured loss, or a score of the sensitivity analysis.
enum class DamageScore : uint8_t { kLoss, kFisher, kHessian, kInformation, kEntropy };
std::string_view name(DamageScore score);                 // "loss", "fisher", "hessian", "mi", "entropy"
DamageScore parse_damage_score(const std::string& text);  // ConfigError lists them

struct PlanRequest {
  BudgetText budget;
  std::vector<std::string> recipes = {"current"};
  int64_t most_wholes = 1 << 9;                // WholeSearch::most_plans
  double rest_damage = 0.0;                    // rest_damage()
  std::vector<SharedDamage> shared_damages{};  // all options of shared formats but the most exact
  PlanSearch own_search{};                     // in place of solve(), unless `damage` is the loss
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

// A plan that another took the place of after its runs.
struct TriedPlan {
  Plan choice{};
  double promised = 0.0;  // PlanAdvice::promised_to_runs()
  PlanValidation validation{};
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
  PlanGoal goal;  // for a whole step: a sum of parts differs from it
  DamageScore damage = DamageScore::kLoss;

  // Results of the search.
  double sums_gap = 0.0;           // SearchResult::gap, of the last search in sums of parts
  int64_t plans_priced = 0;        // as wholes; 0: an allocation was taken as it is
  bool is_optimum = false;         // these were all plans
  std::vector<WholePlan> uniform;  // fp32, 16 bits, recipes
  ParetoFront front;               // in sums of parts
  // By rising time: the Pareto-optimal plans among some of the front, the chosen plan and the uniform plans.
  std::vector<WholePlan> front_plans;
  WholePlan plan;
  bool meets_budget = false;
  std::vector<std::string> reasons;  // by place
  Config config;                     // trains the plan

  // Results of its training.
  std::optional<PlanValidation> validation;   // against 16 bits and fp32
  std::vector<TriedPlan> earlier;             // that it took the place of
  std::optional<ReferenceResult> gave_way{};  // the first plan against 16 bits throughout, which took its place

  // Times that it gave options back because it was worse than promised.
  int promotions() const { return static_cast<int>(std::ssize(earlier)) - (gave_way ? 1 : 0); }
  bool knows_energy() const { return common.joules > 0.0; }
  // The limited quantity: of a whole step, and as the sum of its parts.
  double limited(const WholePlan& one) const { return quantity(one.totals(), goal.budget); }
  double limited_in_parts(const Plan& choice) const;
  WholePlan priced(const std::string& name, const Plan& choice) const;
  // Makes this the plan.
  void take(const Plan& choice);
  // The interval of the plan's step time as measured beside 16 bits throughout, times their prediction.
  std::optional<Interval> measured_seconds(const ReferenceResult& low) const;
  // A plan as fast as 16 bits throughout meets a budget of time that they meet.
  bool is_as_fast(const ReferenceResult& low) const;
  // Whether the plan misses its purpose by its measured time: above a budget of time, or under a budget of loss above
  // the time of 16 bits throughout.
  bool exceeds_measured(const ReferenceResult& low) const;
  // The newest runs of a plan, and its loss above fp32 in them; 16 bits throughout also run beside others.
  const PlanValidation* runs_of(const Plan& choice) const;
  std::optional<MeanDifference> trained_loss(const Plan& choice) const;
  // Whether a plan misses the budget, by prediction or, in time and loss, as measured.
  bool misses_budget(const WholePlan& one) const;
  bool misses_budget() const { return misses_budget(plan); }
  // Whether a plan that meets the budget does so at the upper end of its predicted energy and its measured time or loss
  // as well. A roofline has no upper end of time. Only the validation's runs are evidence about the loss of a training.
  bool meets_surely() const;
  // Whether plans meet the budget, but the device has no memory for any of them.
  bool lacks_memory() const;
  // The damage promised for runs on one rank: the plan's without the wire's.
  double promised_to_runs() const;
  double backward_damage(const Plan& choice) const;
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

using OptionValues = std::vector<std::vector<double>>;  // by decision and option

// The harm of each option by the score, by place and option: the sum over its decisions, 0 for fp32.
//   fisher, hessian   the analysis's score; the Hessian's magnitude
//   mi                log2(bins) minus the mutual information of the exact and the lowered product, in bits
//   entropy           bits of the lowered product's histogram times the share of 32 bits that the format saves: a
//                     product with more information needs more bits
// An unknown score (attention, products too large to sample) is replaced by the largest of the same format. `places`
// are layers.
OptionValues score_damages(DamageScore score, const SensitivityAnalysis& analysis, DType low,
                           const std::vector<PlannedPlace>& places);
// Solves the problem with these harms in place of its damages. The result's damage and gap are harms.
SearchResult allocate(const PlanProblem& problem, const PlanGoal& goal, const OptionValues& harms);

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

// ---- The work of finding and validating a plan, known before it begins (plan_run.cc).

// Counted in training steps of the configuration; a loss alone counts as a third of one.
struct PlanEffort {
  int64_t decisions = 0;  // of the sensitivity analysis
  double warm_up_steps = 0;
  double layer_steps = 0;          // damages of layers
  double state_steps = 0;          // damages of formats that layers share
  double validation_steps = 0;     // runs of the plan and beside it
  double turns = 0;                // of timing these side by side, each of a step and kTurnSeconds at least
  double dry_runs = 0;             // of whole plans, to price them: at most so many
  double dry_run_seconds = 0;      // of one, as measured
  double timings = 0;              // of kernels, kTimingSeconds each
  double bytes = 0;                // of this process, at its most
  std::vector<StepCalls> timed{};  // steps with these kernels, on the present device

  double steps() const { return warm_up_steps + layer_steps + state_steps + validation_steps + turns; }
  // At this time of a step. A kernel that takes long is timed for longer than kTimingSeconds.
  double seconds(double of_step) const;
};

// `places`: as find_plan() has them. ConfigError as predict_memory_table().
PlanEffort plan_effort(const PlanRunRequest& request, const Config& config, const std::vector<PlannedPlace>& places,
                       const Target& target = {});
// "about 412 steps of 0.21 s, 40 MiB of memory, 0:01:27 (h:mm:ss)": to_duration().
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
