// Trains a little, measures damages, prices the options, searches, and validates the plan against uniform precisions.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/base/host_memory.h"
#include "core/base/log.h"
#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/run/job/job.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/train/step/memory_prediction.h"

namespace mantissa {
namespace {

constexpr double kLossPass = 1.0 / 3.0;             // a forward pass, of a step's three
constexpr double kDecisionSteps = 1.0 + kLossPass;  // a step, and the loss after its update
constexpr double kMostPlanSeconds = 3600.0;

struct Part {
  const char* what;
  double PlanEffort::*steps;
  const char* options;  // that make it smaller
};
constexpr Part kParts[] = {{"warm-up", &PlanEffort::warm_up_steps, "--warm-up"},
                           {"damages of layers", &PlanEffort::layer_steps, "--batches, --recipes none"},
                           {"damages of optimizer state and wire", &PlanEffort::state_steps, "--batches, --state none"},
                           {"validation", &PlanEffort::validation_steps, "--seeds, --steps; --seeds 0 leaves it out"},
                           {"step times side by side", &PlanEffort::turns, "--time-pairs"}};

constexpr std::string_view kScoreNames[] = {"loss", "fisher", "hessian", "mi", "entropy"};

double bits_of(const std::string& format) {
  if (format == "bf16" || format == "fp16") return 16.0;
  return format.starts_with("nvfp4") ? 4.0 : 8.0;
}

// NaN if it is not known.
double harm_of(DamageScore score, const DecisionScores& one) {
  if (score == DamageScore::kLoss) return one.loss.mean;
  if (score == DamageScore::kFisher) return one.fisher.mean;
  if (score == DamageScore::kHessian) return std::abs(one.hessian.mean);
  if (score == DamageScore::kInformation) return std::log2(kInformationBins) - one.information.mean;
  return (one.entropy.mean + std::log2(kBinsPerDeviation)) * (1.0 - bits_of(one.decision.format) / 32.0);
}

// Impossible requests fail before anything is trained.
void require_possible(const PlanRunRequest& request, const Config& config) {
  const PlanRequest& plan = request.plan;
  require_recipes(plan.recipes);
  require_kinds(request.state);
  // Scores only compare layers with each other.
  const bool goes_by_loss = plan.damage == DamageScore::kLoss;
  require<ConfigError>(goes_by_loss || plan.budget.kind != PlanQuantity::kDamage,
                       "--damage {}: expected a budget of time, memory or energy, got one of loss, which limits the "
                       "loss that is measured",
                       name(plan.damage));
  require<ConfigError>(request.hardware != nullptr || plan.budget.kind != PlanQuantity::kJoules,
                       "--budget energy: expected a device whose power is known, got that of this machine, where only "
                       "times are measured: give --hardware with one of {}, or a budget of time",
                       hardware_names());
  if (const Hardware* const hardware = request.hardware) {
    // Products are in `low` unless a plan chooses something else.
    const bool is_fp16 = low_of(config) == DType::kF16;
    const ProductFormat format = is_fp16 ? ProductFormat::kF16 : ProductFormat::kBF16;
    require<ConfigError>(
        units_for(*hardware, format).has_value(),
        "--hardware {}: expected units for {}, which plans with precision.compute={} are made of, but {} has none, or "
        "none whose rate is published: give precision.compute={}, or --hardware with one of {}",
        hardware->name, name(format), name(low_of(config)), hardware->title, name(is_fp16 ? DType::kBF16 : DType::kF16),
        hardware_names(format));
  }
  if (plan.budget.kind != PlanQuantity::kBytes || plan.budget.is_relative) return;
  // The 16-bit weights alone: no plan is below them.
  const int64_t parameters = predict_memory_table(tried(in_exact_precision(config)), 1).parameters;
  const double least = static_cast<double>(parameters) * static_cast<double>(sizeof(uint16_t));
  require<ConfigError>(plan.budget.value >= least,
                       "--budget: {:.0f} bytes of memory are less than the {:.0f} of the weights alone in 16 bits: "
                       "expected more; numbers without a unit are bytes, others memory=1.5GiB or memory=90%",
                       plan.budget.value, least);
}

// Steps of uniform plans, and of uniform plans with another option of an attention: most calls of any plan occur there.
std::vector<StepCalls> uniform_steps(const Config& config, DType low, const std::vector<PlannedPlace>& places,
                                     const std::vector<std::string>& names, const Target& target) {
  std::vector<Plan> plans;
  for (const std::string& option : names) plans.push_back(uniform_plan(places, low, option));
  for (size_t place = 0; place < places.size(); ++place) {
    for (int option = 0; !places[place].is_layer() && option < std::ssize(places[place].options); ++option) {
      Plan plan = uniform_plan(places, low, std::string(name(low)));
      if (std::exchange(plan[place], option) != option) plans.push_back(plan);
    }
  }
  std::vector<StepCalls> steps;
  for (const Plan& plan : plans) {
    steps.push_back(walk_calls(with_plan(config, low, places, plan), 1, target.fp8_gemm_support, target.packing));
  }
  return steps;
}

// The work beside the training: plans are priced by dry runs, whose time is measured here, and kernels are timed.
void add_pricing(const PlanRunRequest& request, const Config& config, const std::vector<PlannedPlace>& places,
                 const Target& target, PlanEffort& effort) {
  const DType low = low_of(config);
  double plans = 1.0, options = 0.0;
  for (const PlannedPlace& place : places) {
    plans *= static_cast<double>(place.options.size());
    options += static_cast<double>(place.options.size());
  }
  effort.dry_runs = options + std::min(plans, static_cast<double>(request.plan.most_wholes));
  const auto begin = std::chrono::steady_clock::now();
  step_on({}, with_plan(config, low, {}, {}), 1);
  effort.dry_run_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (request.hardware != nullptr) return;
  effort.timed = uniform_steps(config, low, places, uniform_names(low, request.plan.recipes), target);
  std::set<std::string> calls;
  for (const StepCalls& step : effort.timed) {
    for (const KernelCall& call : step.calls) calls.insert(call.signature());
  }
  effort.timings = static_cast<double>(request.rounds) * static_cast<double>(calls.size());
}

// Says what the plan will take. ConfigError if that is more than the request accepts.
void announce(const PlanRunRequest& request, const PlanEffort& effort, double seconds_of_step) {
  if (!request.accepts_much) require_time_for(effort, seconds_of_step);
  const BudgetText& budget = request.plan.budget;
  log_info("plan: budget of {}: {}", name(budget.kind),
           budget.is_relative ? fmt::format("{:g} % of 16 bits throughout", 100.0 * budget.value)
                              : to_text(budget.kind, budget.value));
  log_info("plan: {}", to_text(effort, seconds_of_step));
  log_info("plan: {} steps in fp32, then {} batches with one layer lowered at a time", request.warm_up,
           request.batches);
}

void validate(const PlanRunRequest& request, const Config& config, Communicator& communicator, PlanAdvice& advice) {
  ValidationOptions options = request.validation;
  if (options.most_seeds == 0) return;
  if (request.hardware != nullptr) options.time_pairs = 0;
  const std::vector<Candidate> against = references(without_fallback(config), advice.low, advice.places);
  const auto train = [&](const Config& found) {
    return validate_plan(tried(without_fallback(found)), against, options, communicator);
  };
  try_plan(train, advice);
}

}  // namespace

double PlanEffort::seconds(double of_step) const {
  return (steps() - turns) * of_step + turns * std::max(of_step, StepTimeOptions().turn_seconds) +
         dry_runs * dry_run_seconds + timings * kTimingSeconds;
}

PlanEffort plan_effort(const PlanRunRequest& request, const Config& config, const std::vector<PlannedPlace>& places,
                       const Target& target) {
  const DType low = low_of(config);
  const std::vector<std::string> names = uniform_names(low, request.plan.recipes);
  const auto batches = static_cast<double>(request.batches);
  PlanEffort effort;
  effort.decisions = std::ssize(decisions_of(config, {names.begin() + 1, names.end()}, "**"));
  effort.warm_up_steps = static_cast<double>(request.warm_up);
  // Each decision and the exact pass; then the rest's damage by two losses.
  effort.layer_steps = batches * (static_cast<double>(effort.decisions + 1) * kDecisionSteps + 2.0 * kLossPass) +
                       2.0 * static_cast<double>(request.plan.hessian_probes());
  const SharedTrials trials;
  const int64_t options = options_to_try(places);
  const bool has_shared = !std::ranges::all_of(places, &PlannedPlace::is_layer);
  if (has_shared) {
    effort.state_steps = static_cast<double>(options + 1) * batches *
                         (static_cast<double>(trials.steps) + kLossPass * static_cast<double>(trials.evaluations));
  }
  const ValidationOptions& runs = request.validation;
  std::vector<Candidate> against;
  if (runs.most_seeds > 0) against = references(without_fallback(config), low, places);
  const auto models = static_cast<double>(against.size() + 1);
  const bool takes_times = runs.most_seeds > 0 && request.hardware == nullptr;
  effort.validation_steps = models * static_cast<double>(runs.most_seeds * std::min(runs.steps, config.train.steps));
  if (takes_times) effort.turns = models * static_cast<double>(kRoundsPerPair * runs.time_pairs);

  add_pricing(request, config, places, target, effort);
  // The analysis keeps copies of the state, and four more of the parameters in fp32. Ranks of trials, and models whose
  // times are compared, are in memory at once; the plan's is no larger than the largest of the others.
  const MemoryTable exact = predict_memory_table(tried(in_exact_precision(config)), 1);
  effort.bytes = static_cast<double>(exact.total() + exact.state.weights + exact.state.masters + exact.state.moments) +
                 4.0 * static_cast<double>(exact.parameters) * static_cast<double>(sizeof(float));
  if (const int ranks = ranks_of_trials(places, request.ranks); has_shared && ranks <= kMostTrialRanks) {
    effort.bytes = std::max(effort.bytes, static_cast<double>(ranks) * static_cast<double>(exact.total()));
  }
  double sum = 0.0, largest = 0.0;
  for (const Candidate& reference : against) {
    const auto bytes = static_cast<double>(predict_memory_table(tried(reference.config), 1).total());
    sum += bytes;
    largest = std::max(largest, bytes);
  }
  effort.bytes = std::max(effort.bytes, effort.turns > 0 ? sum + largest : largest);
  return effort;
}

std::string to_text(const PlanEffort& effort, double seconds_of_step) {
  const std::string timings =
      effort.timings > 0.0 ? fmt::format("{} timings of kernels, ", in_three_digits(effort.timings)) : "";
  return fmt::format("about {} steps of {} s, {}{} of memory, {}", in_three_digits(effort.steps()),
                     in_three_digits(seconds_of_step), timings, to_text(PlanQuantity::kBytes, effort.bytes),
                     to_duration(effort.seconds(seconds_of_step)));
}

void require_memory_for(const PlanEffort& effort, double total_bytes) {
  require<MemoryError>(
      effort.bytes <= total_bytes,
      "advise --budget: about {} of memory are needed, and this machine has {}: give --time-pairs 0, for which fewer "
      "models are in memory at once, a smaller train.micro_batch, train.recompute=full or a smaller model; or go on "
      "with --yes",
      to_text(PlanQuantity::kBytes, effort.bytes), to_text(PlanQuantity::kBytes, total_bytes));
}

void require_time_for(const PlanEffort& effort, double seconds_of_step) {
  std::vector<Part> parts(std::begin(kParts), std::end(kParts));
  std::ranges::stable_sort(parts, std::greater(), [&](const Part& part) { return effort.*part.steps; });
  std::string text;
  for (const auto& [what, steps, options] : parts) {
    const double share = effort.*steps / effort.steps();
    if (share >= 0.1) text += fmt::format("\n  {:.0f} % for {}: {}", 100.0 * share, what, options);
  }
  require<ConfigError>(effort.seconds(seconds_of_step) <= kMostPlanSeconds,
                       "advise --budget: {}: more than an hour.\n"
                       "Go on with --yes, give a smaller model or train.global_batch, or reduce one of these:{}",
                       to_text(effort, seconds_of_step), text);
}

double time_of_step(Session& session) {
  constexpr double kLong = 60.0;  // seconds; after a longer first pass, which also builds kernels, there is no second
  LoweredPasses passes(session);
  passes.load(session.next_step);
  double seconds = 0.0;
  for (int pass = 0; pass < 2 && seconds < kLong; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    passes.run(nullptr, 1.0f);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return seconds;
}

std::string_view name(DamageScore score) { return kScoreNames[static_cast<size_t>(score)]; }

DamageScore parse_damage_score(const std::string& text) {
  const auto found = std::ranges::find(kScoreNames, text);
  require<ConfigError>(found != std::end(kScoreNames), "--damage: expected one of {}, got '{}'",
                       fmt::join(kScoreNames, ", "), text);
  return static_cast<DamageScore>(found - std::begin(kScoreNames));
}

OptionValues score_damages(DamageScore score, const SensitivityAnalysis& analysis, DType low,
                           const std::vector<PlannedPlace>& places) {
  std::map<std::string, double> largest;  // by format
  for (const DecisionScores& one : analysis.decisions) {
    if (const double harm = harm_of(score, one); one.refusal.empty() && std::isfinite(harm)) {
      double& most = largest[one.decision.format];
      most = std::max(most, harm);
    }
  }
  OptionValues harms;
  for (const PlannedPlace& place : places) {
    MANTISSA_CHECK(place.is_layer(), "[advise] {} has no scores", place.name());
    std::vector<double>& of_options = harms.emplace_back();
    for (const PlaceOption& option : place.options) {
      double sum = 0.0;
      for (const PrecisionDecision& decision : decisions_of(place, option, low)) {
        const double harm = harm_of(score, scores_of(analysis, decision));
        sum += std::max(0.0, std::isfinite(harm) ? harm : largest[decision.format]);
      }
      of_options.push_back(sum);
    }
  }
  return harms;
}

SearchResult allocate(const PlanProblem& problem, const PlanGoal& goal, const OptionValues& harms) {
  PlanProblem scored = problem;
  for (size_t i = 0; i < scored.size(); ++i) {
    for (size_t option = 0; option < scored[i].options.size(); ++option) {
      scored[i].options[option].damage = harms[i][option];
    }
  }
  return solve(scored, goal);
}

PlanAdvice find_plan(const PlanRunRequest& request, const std::string& title, const Config& config) {
  require_possible(request, config);
  const DType low = low_of(config);
  const bool goes_by_loss = request.plan.damage == DamageScore::kLoss;
  const std::vector<PlannedPlace> layers = planned_layers(config, low, request.plan.recipes);
  const std::vector<std::string> state = goes_by_loss ? request.state : std::vector<std::string>();
  const std::vector<PlannedPlace> shared = planned_shared(config, low, state, request.ranks);
  std::vector<PlannedPlace> places = layers;
  places.insert(places.end(), shared.begin(), shared.end());
  const auto communicator = start_communicator("local", config.device);
  set_up_threads(config, *communicator);
  const DeviceChoice device = choose_device(config.device, communicator->local_rank());
  const std::unique_ptr<Backend> backend = create_backend(device.backend, device.index);
  const std::unique_ptr<Stream> stream = backend->create_stream();
  MeasuredCosts measured(*backend, *stream, last_level_cache_bytes());
  std::optional<Roofline> roofline;
  const Target target = request.hardware != nullptr
                            ? absent_target(*request.hardware, roofline.emplace(*request.hardware))
                            : present_target(config, *backend, measured);
  const PlanEffort effort = plan_effort(request, config, places, target);
  if (!request.accepts_much && computes_on_host(config.device, 0)) {
    require_memory_for(effort, static_cast<double>(host_memory().total_bytes));
  }

  const Config exact = tried(in_exact_precision(config));
  std::optional<Session> session(std::in_place, exact, *communicator);
  announce(request, effort, time_of_step(*session));
  train_steps(*session, request.warm_up);
  const std::vector<std::string> names = uniform_names(low, request.plan.recipes);
  const SensitivityAnalysis sensitivity = analyze_sensitivity({.target = title,
                                                               .formats = {names.begin() + 1, names.end()},
                                                               .batches = request.batches,
                                                               .probes = request.plan.hessian_probes()},
                                                              *session);
  places = layers;
  keep_known(places, {.low = low, .layers = sensitivity, .shared = {}});
  places.insert(places.end(), shared.begin(), shared.end());
  PlanRequest plan = request.plan;
  plan.rest_damage = rest_damage(config, low, layers, request.batches, *session);
  plan.shared_damages = shared_damages(
      config, low, {.windows = request.batches, .ranks = request.ranks, .fp16_scale = sensitivity.fp16_scale}, places,
      session, *communicator);
  if (!goes_by_loss) {
    plan.own_search = [&](const PlanProblem& problem, const PlanGoal& goal, const std::vector<PlannedPlace>& left) {
      return allocate(problem, goal, score_damages(plan.damage, sensitivity, low, left));
    };
  }

  if (request.hardware == nullptr) {
    log_info("plan: timing the kernels of {} in {}", counted(std::ssize(effort.timed), "step"),
             counted(request.rounds, "round"));
  }
  // In several rounds, since other work may slow the device for a while.
  for (int round = 0; round < request.rounds; ++round) measured.measure(effort.timed);
  PlanAdvice advice = advise_plan(plan, config, places, sensitivity, target, request.ranks);
  validate(request, config, *communicator, advice);
  return advice;
}

}  // namespace mantissa
