#include "tools/lab/compare/utility.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "tools/lab/experiment/run_length.h"
#include "tools/run/report/report.h"

namespace mantissa {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(UtilityWeights, loss, time, memory, energy)

namespace {

struct Term {
  const char* name;
  double UtilityWeights::*weight;
};
constexpr Term kTerms[] = {{"loss", &UtilityWeights::loss},
                           {"time", &UtilityWeights::time},
                           {"memory", &UtilityWeights::memory},
                           {"energy", &UtilityWeights::energy}};

// A precision with its utility for each seed.
struct Rated {
  std::string name;
  size_t index = 0;
  std::vector<double> utilities{};
  double mean = 0.0;
};

// Minus the slope of a run's losses on ln(step) over its second half.
double fall(const TrainingRecord& run) {
  const size_t first = run.steps.size() / 2;
  double count = 0.0, x_mean = 0.0, y_mean = 0.0, xx = 0.0, xy = 0.0;
  const auto x_of = [](size_t step) { return std::log(static_cast<double>(step) + 1.0); };
  for (size_t step = first; step < run.steps.size(); ++step) {
    count += 1.0;
    x_mean += x_of(step);
    y_mean += run.steps[step].loss;
  }
  x_mean /= count;
  y_mean /= count;
  for (size_t step = first; step < run.steps.size(); ++step) {
    xx += (x_of(step) - x_mean) * (x_of(step) - x_mean);
    xy += (x_of(step) - x_mean) * (run.steps[step].loss - y_mean);
  }
  return -xy / xx;
}

Json spread(const MeanDifference& found) {
  Json json = {{"mean", found.mean}, {"interval", nullptr}};
  if (found.interval) json["interval"] = {{"low", found.interval->low}, {"high", found.interval->high}};
  return json;
}

std::string less_or_more(double log_ratio, const char* what) {
  const double per_cent = 100.0 * (std::exp(log_ratio) - 1.0);
  if (std::abs(per_cent) < 0.5) return fmt::format("as much {}", what);
  return fmt::format("{:.0f} % {} {}", std::abs(per_cent), per_cent < 0.0 ? "less" : "more", what);
}

// In favour of a precision: "loss equal within 0.0075 nats, 0.71 times the time, 22 % less memory".
std::string evidence(const Json& rated, const PrecisionComparison& comparison, size_t index,
                     const UtilityWeights& weights) {
  std::vector<std::string> parts;
  if (index == comparison.baseline) return "the baseline";
  if (weights.loss > 0.0) {
    const Json summary = summary_of(comparison, index);
    const std::string verdict = summary["verdict"];
    const double mean = number_of(summary["loss_difference"]["mean"]);
    parts.push_back(verdict == "equal" ? fmt::format("the loss equal within {:.2g} nats", margin_of(comparison))
                                       : fmt::format("the loss {:+.4f} nats ({})", mean, verdict));
  }
  if (weights.time > 0.0) parts.push_back(fmt::format("{:.2f} times the time", std::exp(number_of(rated["time"]))));
  if (weights.memory > 0.0) parts.push_back(less_or_more(number_of(rated["memory"]), "memory"));
  if (weights.energy > 0.0) parts.push_back(less_or_more(number_of(rated["energy"]), "energy"));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Why there is no winner; empty if `best` is it.
std::string too_thin(const PrecisionComparison& comparison, const UtilityWeights& weights, const Rated& best,
                     const std::vector<Rated>& all) {
  if (comparison.seeds.size() < 2) return "one seed does not show how much results vary by chance: give more seeds";
  if (all.size() < 2) return "there is nothing to choose from: fewer than two precisions were trained with success";
  if (std::isnan(best.mean)) {
    return "the loss of the baseline does not fall measurably in the second half of its steps: give more steps or "
           "seeds";
  }
  const double level = 1.0 - (1.0 - comparison.options.level) / static_cast<double>(all.size() - 1);
  std::vector<std::string> rivals;
  for (const Rated& other : all) {
    if (other.index == best.index) continue;
    std::vector<double> leads = best.utilities;
    for (size_t seed = 0; seed < leads.size(); ++seed) leads[seed] -= other.utilities[seed];
    const auto interval = mean_difference(leads, level).interval;
    if (!interval || !(interval->low > 0.0)) rivals.push_back(fmt::format("{} ({:+.3f})", other.name, other.mean));
  }
  if (!rivals.empty()) {
    return fmt::format("the lead of {} ({:+.3f}) over {} may be chance: give more seeds", best.name, best.mean,
                       fmt::join(rivals, ", "));
  }
  if (weights.loss == 0.0 || best.index == comparison.baseline) return "";
  const auto& runs = comparison.precisions;
  return too_short(runs[comparison.baseline].runs, runs[best.index].runs, margin_of(comparison),
                   comparison.options.level);
}

}  // namespace

UtilityWeights parse_utility(const std::string& text, const char* option) {
  UtilityWeights weights;
  const auto refuse = [&] {
    throw ConfigError(fmt::format(
        "{}: expected weights of 0 or more such as loss=1,time=0.5,memory=0.2,energy=0.1, each once, got '{}'", option,
        text));
  };
  std::vector<const char*> seen;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = part.find('=');
    const auto term = std::ranges::find(kTerms, part.substr(0, equals), &Term::name);
    if (equals == std::string::npos || term == std::end(kTerms)) refuse();
    if (std::ranges::find(seen, term->name) != seen.end()) refuse();
    seen.push_back(term->name);
    double& weight = weights.*term->weight;
    const auto [rest, error] = std::from_chars(part.data() + equals + 1, part.data() + part.size(), weight);
    if (error != std::errc() || rest != part.data() + part.size() || !std::isfinite(weight) || weight < 0.0) refuse();
  }
  if (std::ranges::all_of(kTerms, [&](const Term& term) { return weights.*term.weight == 0.0; })) refuse();
  return weights;
}

std::string describe(const UtilityWeights& weights) {
  std::vector<std::string> parts;
  for (const Term& term : kTerms) {
    if (weights.*term.weight > 0.0) parts.push_back(fmt::format("{}={:g}", term.name, weights.*term.weight));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

std::optional<double> nats_per_efold(const std::vector<TrainingRecord>& baseline, double level) {
  std::vector<double> falls;
  for (const TrainingRecord& run : baseline) {
    if (run.succeeded() && run.steps.size() >= 10) falls.push_back(fall(run));
  }
  if (falls.size() < 2) return std::nullopt;
  const MeanDifference found = mean_difference(falls, level);
  // Not NaN either.
  return found.interval->low > 0.0 ? std::optional(found.mean) : std::nullopt;
}

Json utility_of(const PrecisionComparison& comparison, const UtilityWeights& weights, const StepEnergy& energy) {
  const double level = comparison.options.level;
  const PrecisionRuns& baseline = comparison.precisions[comparison.baseline];
  const std::optional<double> efold = nats_per_efold(baseline.runs, level);
  const double base_joules = weights.energy > 0.0 ? energy(baseline.name) : 0.0;
  Json precisions = Json::array();
  std::vector<Rated> all;
  std::vector<std::string> failed;
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    const PrecisionRuns& one = comparison.precisions[index];
    if (one.runs.empty()) continue;
    if (!std::ranges::all_of(one.runs, &TrainingRecord::succeeded)) {
      failed.push_back(one.name);
      continue;
    }
    if (!std::ranges::all_of(baseline.runs, &TrainingRecord::succeeded)) continue;
    const double memory = std::log(static_cast<double>(one.runs[0].peak_memory_bytes) /
                                   static_cast<double>(baseline.runs[0].peak_memory_bytes));
    const double joules = weights.energy > 0.0 ? std::log(energy(one.name) / base_joules) : 0.0;
    Rated rated{.name = one.name, .index = index};
    double loss = 0.0, time = 0.0;
    const auto seeds = static_cast<double>(one.runs.size());
    for (size_t seed = 0; seed < one.runs.size(); ++seed) {
      const double own_loss = (one.runs[seed].final_loss() - baseline.runs[seed].final_loss()) / efold.value_or(NAN);
      const double own_time =
          std::log(one.runs[seed].median_step_seconds() / baseline.runs[seed].median_step_seconds());
      loss += own_loss / seeds;
      time += own_time / seeds;
      double utility = 0.0;  // a weight of 0 leaves out what is not known
      if (weights.loss > 0.0) utility -= weights.loss * own_loss;
      if (weights.time > 0.0) utility -= weights.time * own_time;
      if (weights.memory > 0.0) utility -= weights.memory * memory;
      if (weights.energy > 0.0) utility -= weights.energy * joules;
      rated.utilities.push_back(utility);
    }
    const MeanDifference utility = mean_difference(rated.utilities, level);
    rated.mean = utility.mean;
    precisions.push_back({{"name", one.name},
                          {"utility", spread(utility)},
                          {"loss", loss},
                          {"time", time},
                          {"memory", memory},
                          {"energy", weights.energy > 0.0 ? Json(joules) : Json()}});
    all.push_back(std::move(rated));
  }
  Json found = {{"weights", weights}, {"nats_per_efold", efold}, {"winner", nullptr}};
  const auto best = std::ranges::max_element(all, {}, &Rated::mean);
  const bool has_baseline = std::ranges::all_of(baseline.runs, &TrainingRecord::succeeded);
  const std::string why = !has_baseline       ? fmt::format("{}, the baseline, failed with some seed", baseline.name)
                          : best == all.end() ? "nothing was trained with success"
                                              : too_thin(comparison, weights, *best, all);
  if (why.empty()) {
    found["winner"] = best->name;
    const Json& rated = precisions[static_cast<size_t>(best - all.begin())];
    found["sentence"] =
        fmt::format("By {}, {} wins ({}): {}", describe(weights), best->name, with_error("+")(rated["utility"]),
                    evidence(rated, comparison, best->index, weights));
  } else {
    found["sentence"] = fmt::format("By {}, the evidence is too thin to name a winner: {}", describe(weights), why);
  }
  if (!failed.empty()) {
    found["sentence"] =
        fmt::format("{}. Not rated, since some seed failed: {}", found["sentence"], fmt::join(failed, ", "));
  }
  found["precisions"] = std::move(precisions);
  return found;
}

}  // namespace mantissa
