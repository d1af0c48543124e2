#include "tools/lab/compare/precision_comparison.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <ranges>

#include "comm/communicator.h"
#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa {

// Found through argument-dependent lookup, and so not in an anonymous namespace.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ValidationLoss, step, loss)

static void to_json(Json& json, const TrainingRecord& run) {
  Json steps;
  for (const char* series : {"loss", "grad_norm", "scale", "result", "seconds"}) steps[series] = Json::array();
  for (const TrainedStep& step : run.steps) {
    steps["loss"].push_back(step.loss);
    steps["grad_norm"].push_back(step.grad_norm);
    steps["scale"].push_back(step.scale);
    steps["result"].push_back(name(step.result));
    steps["seconds"].push_back(step.seconds);
  }
  json = {{"failure", run.succeeded() ? Json() : Json(run.failure)},
          {"final_loss", run.final_loss()},
          {"median_step_seconds", run.median_step_seconds()},
          {"undone_steps", run.undone},
          {"tokens_per_second", run.tokens_per_second()},
          {"peak_memory_bytes", run.peak_memory_bytes},
          {"memory", run.memory},
          {"sent_bytes", run.sent_bytes},
          {"validation", run.validation},
          {"steps", steps}};
}

namespace {

size_t baseline_of(const std::vector<PrecisionRuns>& precisions, const std::string& wanted) {
  const std::string name = wanted.empty() ? "fp32" : wanted;
  const auto found = std::ranges::find(precisions, name, &PrecisionRuns::name);
  if (found != precisions.end()) return static_cast<size_t>(found - precisions.begin());
  if (wanted.empty()) return 0;
  const auto names = precisions | std::views::transform(&PrecisionRuns::name);
  throw ConfigError("--baseline: expected one of the precisions {}, got '{}'", fmt::join(names, ","), wanted);
}

void announce(const std::string& name, uint64_t seed, const TrainingRecord& run) {
  if (!run.succeeded()) return log_warn("{} with seed {} failed: {}", name, seed, run.failure);
  log_info("{} with seed {}: final loss {:.4f} nats, {:.2f} ms a step, {:.0f} tokens/s", name, seed, run.final_loss(),
           1e3 * run.median_step_seconds(), run.tokens_per_second());
}

// Over seeds; null without values.
Json spread_of(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"mean", sum / static_cast<double>(values.size())}, {"low", *low}, {"high", *high}};
}

Json peak_of(const Runs& runs) {
  const size_t peak = std::ranges::max_element(runs, {}, &TrainingRecord::peak_memory_bytes)->peak_memory_bytes;
  return peak > 0 ? Json(static_cast<double>(peak)) : Json();
}

void add_times(const Runs& runs, const Runs& baseline, Json& found) {
  std::vector<double> seconds, ratios;
  double undone = 0.0;
  for (size_t seed = 0; seed < runs.size(); ++seed) {
    const double ours = runs[seed].cost_of_step(), theirs = baseline[seed].cost_of_step();
    undone += runs[seed].undone_share() / static_cast<double>(runs.size());
    if (std::isnan(ours)) continue;
    seconds.push_back(runs[seed].median_step_seconds());
    if (!std::isnan(theirs)) ratios.push_back(ours / theirs);
  }
  found["step_seconds"] = spread_of(seconds);
  found["time_ratio"] = spread_of(ratios);
  found["undone_share"] = undone;
  const auto tokens = static_cast<double>(runs.front().tokens_per_step);
  found["tokens_per_second"] = seconds.empty() ? Json() : Json(tokens / number_of(found["step_seconds"]["mean"]));
}

void add_steps(const Runs& runs, Json& found) {
  std::vector<double> norms;
  std::optional<float> smallest_scale;
  double steps = 0.0, overflows = 0.0, faults = 0.0, changes = 0.0;
  for (const TrainingRecord& run : runs) {
    const auto count = static_cast<double>(run.steps.size());
    steps += count;
    overflows += count * run.skipped_share(StepResult::kOverflow);
    faults += count * run.skipped_share(StepResult::kFault);
    changes += static_cast<double>(run.scale_changes());
    if (count > 0) smallest_scale = std::min(smallest_scale.value_or(HUGE_VALF), run.smallest_scale());
    for (const TrainedStep& step : run.steps) {
      if (step.result == StepResult::kApplied) norms.push_back(step.grad_norm);
    }
  }
  const std::vector<TrainedStep>& first = runs.front().steps;
  found["overflow_share"] = steps > 0.0 ? overflows / steps : 0.0;
  found["fault_share"] = steps > 0.0 ? faults / steps : 0.0;
  found["grad_norm"] = quantile(std::move(norms), 0.5);  // NaN without values
  found["smallest_scale"] = smallest_scale;
  found["last_scale"] = first.empty() ? Json() : Json(first.back().scale);
  found["scale_changes"] = changes / static_cast<double>(runs.size());
}

// Why the verdict is inconclusive, and what to do.
std::string too_few_seeds(const MeanDifference& difference, double margin, double level) {
  if (difference.pairs < 2) {
    return "one run cannot show how much results vary by chance: verdicts are given from 2 seeds on: use more --seeds";
  }
  if (margin <= 0.0) return "some runs of the baseline did not get below their first loss: nothing is equal to them";
  const int64_t least = pairs_for_power(difference.stddev, margin, level, kWantedPower);
  if (least == 0) {
    return "too few seeds to tell: results vary so much that not even 10,000 would be enough: give a larger --margin";
  }
  if (least > difference.pairs) {
    const double stddev = largest_stddev(difference.stddev, difference.pairs);
    const int64_t needed = pairs_for_power(stddev, margin, level, kWantedPower);
    return fmt::format(
        "too few seeds to tell: if the precisions do not differ, {} are needed to say so in 80 % of cases ({} if all "
        "scatter as these few do; after 3 seeds that is enough in 50 to 71 %). Compare again with such a number of "
        "--seeds, fixed beforehand: who adds seeds, from 3 on, until the verdict is equal errs in 8 % of cases with up "
        "to 10 seeds, in 12 % with up to 20, not in 2.5 %",
        needed == 0 ? "more than 10,000" : fmt::format("about {}", needed), least);
  }
  return "too few seeds to tell: the difference is near the margin: compare again with more --seeds";
}

void add_losses(const PrecisionComparison& comparison, const Runs& runs, const Runs& baseline, Json& found) {
  const double level = comparison.options.level;
  std::vector<double> losses, differences, margins;
  std::vector<uint64_t> seeds;  // of the pairs
  bool only_ours_failed = false, only_theirs_failed = false;
  for (size_t seed = 0; seed < runs.size(); ++seed) {
    const bool is_ours = runs[seed].succeeded(), is_theirs = baseline[seed].succeeded();
    if (is_ours) losses.push_back(runs[seed].final_loss());
    only_ours_failed |= !is_ours && is_theirs;
    only_theirs_failed |= is_ours && !is_theirs;
    if (!is_ours || !is_theirs) continue;
    differences.push_back(runs[seed].final_loss() - baseline[seed].final_loss());
    margins.push_back(comparison.options.margin.of(baseline[seed].first_loss(), baseline[seed].final_loss()));
    seeds.push_back(comparison.seeds[seed]);
  }
  std::optional<MeanDifference> difference;
  found["power"] = found["outlier"] = nullptr;
  if (!differences.empty()) difference = mean_difference(differences, level);
  ComparisonVerdict verdict = ComparisonVerdict::kInconclusive;
  std::string why;
  if (only_ours_failed != only_theirs_failed) {
    verdict = only_ours_failed ? ComparisonVerdict::kWorse : ComparisonVerdict::kBetter;
  } else if (!only_ours_failed && difference && &runs != &baseline) {
    const double margin = mean_margin(margins);
    const std::string short_runs = too_short(baseline, runs, margin, level);
    verdict = unless_short(*judge(differences, margins, level, MorePairs::kNone), short_runs);
    if (verdict == ComparisonVerdict::kInconclusive) {
      const bool is_short = difference->pairs > 1 && margin > 0.0 && !short_runs.empty();
      why = is_short ? short_runs : too_few_seeds(*difference, margin, level);
    }
    if (auto outlier = stands_apart(differences, margins, level)) {
      outlier->without = unless_short(outlier->without, short_runs);
      const uint64_t seed = seeds[outlier->pair];
      found["outlier"] = {{"seed", seed},
                          {"difference", outlier->difference},
                          {"verdict_without", name(outlier->without)},
                          {"text", describe(*outlier, seed)}};
    }
    if (difference->pairs > 1) {  // the power of the whole rule: runs that are too short are never called equal
      found["power"] =
          short_runs.empty() ? equivalence_power(difference->stddev, margin, difference->pairs, level) : 0.0;
    }
  } else if (&runs != &baseline) {
    why = only_ours_failed ? "the precision fails with some seed, the baseline with another: neither is the worse"
                           : "the precision and the baseline fail with every seed: no losses to compare";
  }
  found["final_loss"] = losses.empty() ? Json() : Json(mean_difference(losses, level));
  found["loss_difference"] = difference;
  found["verdict"] = &runs == &baseline ? "baseline" : name(verdict);
  found["why"] = why;
}

}  // namespace

PrecisionComparison compare_precisions(const ComparisonOptions& options, const Config& config,
                                       const std::vector<Candidate>& candidates, Communicator& communicator) {
  const DeviceChoice device = choose_device(config.device, communicator.local_rank());
  PrecisionComparison comparison{.options = options,
                                 .config = config,
                                 .ranks = communicator.size(),
                                 .device = create_backend(device.backend, device.index)->describe(),
                                 .steps = config.train.last_step()};
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    comparison.seeds.push_back(config.train.seed + static_cast<uint64_t>(seed));
  }
  std::vector<size_t> trained;
  for (const Candidate& candidate : candidates) {
    PrecisionRuns precision{.name = candidate.name, .config = candidate.config};
    try {
      require_trainable(candidate.config, communicator);
      trained.push_back(comparison.precisions.size());
    } catch (const ConfigError& error) {
      precision.refusal = error.what();
    }
    comparison.precisions.push_back(std::move(precision));
  }
  comparison.baseline = baseline_of(comparison.precisions, options.baseline);
  const PrecisionRuns& baseline = comparison.precisions[comparison.baseline];
  require<ConfigError>(baseline.refusal.empty(), "{}, the baseline of the comparison, cannot be trained: {}",
                       baseline.name, baseline.refusal);
  const int64_t runs = std::ssize(trained) * std::ssize(comparison.seeds);
  log_info("compare: {} of {}: precisions x seeds = {} x {} (--precisions, --seeds, --steps)", counted(runs, "run"),
           counted(comparison.steps, "step"), trained.size(), comparison.seeds.size());
  ProgressBar progress("compare: steps", runs * comparison.steps);
  int64_t runs_done = 0;
  for (size_t seed = 0; seed < comparison.seeds.size(); ++seed) {
    for (size_t turn = 0; turn < trained.size(); ++turn) {
      PrecisionRuns& precision = comparison.precisions[trained[precision_in_turn(seed, turn, trained.size())]];
      const auto begin = std::chrono::steady_clock::now();
      precision.runs.push_back(
          record_training(with_seed(precision.config, comparison.seeds[seed]), communicator, &progress));
      progress.reach(++runs_done * comparison.steps);  // also after a run that failed early
      precision.places.push_back(static_cast<int64_t>(turn));
      if (communicator.rank() == 0) announce(precision.name, comparison.seeds[seed], precision.runs.back());
      if (seed + turn > 0 || runs == 1) continue;
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      log_info("compare: {} for the rest, {}, at the pace of this one",
               to_duration(taken.count() * static_cast<double>(runs - 1)), counted(runs - 1, "run"));
    }
  }
  return comparison;
}

double margin_of(const PrecisionComparison& comparison) {
  std::vector<double> margins;
  for (const TrainingRecord& run : comparison.precisions[comparison.baseline].runs) {
    if (run.succeeded()) margins.push_back(comparison.options.margin.of(run.first_loss(), run.final_loss()));
  }
  return mean_margin(margins);
}

Json summary_of(const PrecisionComparison& comparison, size_t precision) {
  const auto& all = comparison.precisions;
  const Runs &runs = all[precision].runs, &baseline = all[comparison.baseline].runs;
  const auto failed = std::ranges::find_if_not(runs, &TrainingRecord::succeeded);
  const Json peak = peak_of(runs), baseline_peak = peak_of(baseline);
  Json found = {{"runs", runs.size()},
                {"succeeded", std::ranges::count_if(runs, &TrainingRecord::succeeded)},
                {"failure", failed == runs.end() ? Json() : Json(failed->failure)},
                {"peak_memory_bytes", peak},
                {"memory_ratio", number_of(peak) / number_of(baseline_peak)},
                {"sent_bytes", runs.front().sent_bytes}};
  add_times(runs, baseline, found);
  add_steps(runs, found);
  add_losses(comparison, runs, baseline, found);
  return found;
}

Json to_json(const PrecisionComparison& comparison) {
  Json precisions = Json::array();
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    const PrecisionRuns& precision = comparison.precisions[index];
    precisions.push_back({{"name", precision.name},
                          {"refusal", precision.refusal.empty() ? Json() : Json(precision.refusal)},
                          {"config", to_yaml(precision.config)}});
    if (!precision.refusal.empty()) continue;
    Json& one = precisions.back();
    one["summary"] = summary_of(comparison, index);
    one["runs"] = precision.runs;
    for (size_t seed = 0; seed < precision.runs.size(); ++seed) {
      one["runs"][seed]["seed"] = comparison.seeds[seed];
      one["runs"][seed]["place"] = precision.places[seed];
    }
  }
  return {{"version", 1},
          {"verb", "compare"},
          {"title", comparison.options.title},
          {"training", training_settings(comparison.config)},
          {"setting",
           {{"model", describe_model(comparison.config.model)},
            {"device", comparison.device},
            {"ranks", comparison.ranks},
            {"seeds", comparison.seeds},
            {"steps", comparison.steps},
            {"level", comparison.options.level},
            {"unseen_share", unseen_share(std::ssize(comparison.seeds), comparison.options.level)},
            {"equal_text", equal_text(std::ssize(comparison.seeds), comparison.options.level)},
            {"margin", margin_of(comparison)},
            {"margin_text", describe(comparison.options.margin)}}},
          {"baseline", comparison.precisions[comparison.baseline].name},
          {"precisions", precisions}};
}

}  // namespace mantissa
