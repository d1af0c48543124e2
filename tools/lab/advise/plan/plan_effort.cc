#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "core/base/check.h"
#include "tools/lab/advise/plan/differentiable.h"
#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/train/step/dry_run.h"

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
                           {"the differentiable search", &PlanEffort::search_steps, "--solver knapsack"},
                           {"validation", &PlanEffort::validation_steps, "--seeds, --steps; --seeds 0 leaves it out"},
                           {"step times side by side", &PlanEffort::turns, "--time-pairs"}};

}  // namespace

double PlanEffort::seconds(double of_step) const {
  return (steps() - turns) * of_step + turns * std::max(of_step, StepTimeOptions().turn_seconds);
}

PlanEffort plan_effort(const PlanRunRequest& request, const Config& config, const std::vector<PlannedPlace>& places) {
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
  // The products that each step tries take about as long as its passes.
  if (request.plan.solver == kDifferentiable) {
    effort.search_steps = 2.0 * static_cast<double>(DifferentiableOptions().steps);
  }
  const ValidationOptions& runs = request.validation;
  std::vector<Candidate> against;
  if (runs.most_seeds > 0) against = references(without_fallback(config), low, places);
  const auto models = static_cast<double>(against.size() + 1);
  const bool takes_times = runs.most_seeds > 0 && request.hardware == nullptr;
  effort.validation_steps = models * static_cast<double>(runs.most_seeds * std::min(runs.steps, config.train.steps));
  if (takes_times) effort.turns = models * static_cast<double>(kRoundsPerPair * runs.time_pairs);

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
  return fmt::format("about {} steps of {} s, {} of memory, {} (h:mm:ss)", in_three_digits(effort.steps()),
                     in_three_digits(seconds_of_step), to_text(PlanQuantity::kBytes, effort.bytes),
                     to_clock(effort.seconds(seconds_of_step)));
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

}  // namespace mantissa
