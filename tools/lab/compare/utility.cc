#include "tools/lab/compare/precision_comparison.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/base/error.h"

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

// A precision with its utility for each seed, and its figures.
struct Rated {
  size_t index = 0;
  std::vector<double> utilities{};
  double mean = 0.0;
  Json figures{};
};

bool succeeds(const PrecisionRuns& precision) {
  return std::ranges::all_of(precision.runs, &TrainingRecord::succeeded);
}

// Minus the slope of a run's losses on ln(step) over its second half.
double fall(const TrainingRecord& run) {
  const size_t first = run.steps.size() / 2;
  const auto count = static_cast<double>(run.steps.size() - first);
  double x_mean = 0.0, y_mean = 0.0, xx = 0.0, xy = 0.0;
  const auto x_of = [](size_t step) { return std::log(static_cast<double>(step) + 1.0); };
  for (size_t step = first; step < run.steps.size(); ++step) {
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

// `efold`: nats; NaN: not known. `log_joules`: of the energy over the baseline's.
Rated rate(const PrecisionComparison& comparison, const UtilityWeights& weights, double efold, size_t index,
           double log_joules) {
  const auto& all = comparison.precisions;
  const Runs &runs = all[index].runs, &baseline = all[comparison.baseline].runs;
  const double memory =
      std::log(static_cast<double>(runs[0].peak_memory_bytes) / static_cast<double>(baseline[0].peak_memory_bytes));
  Rated rated{.index = index};
  double loss = 0.0, time = 0.0;
  const auto seeds = static_cast<double>(runs.size());
  for (size_t seed = 0; seed < runs.size(); ++seed) {
    const double own_loss = (runs[seed].final_loss() - baseline[seed].final_loss()) / efold;
    const double own_time = std::log(runs[seed].cost_of_step() / baseline[seed].cost_of_step());
    loss += own_loss / seeds;
    time += own_time / seeds;
    double& utility = rated.utilities.emplace_back(0.0);
    const double terms[] = {own_loss, own_time, memory, log_joules};
    for (size_t i = 0; i < std::size(kTerms); ++i) {
      const double weight = weights.*kTerms[i].weight;
      if (weight > 0.0) utility -= weight * terms[i];  // a weight of 0 leaves out what is not known
    }
  }
  for (size_t seed = 0; weights.loss > 0.0 && seed < runs.size(); ++seed) {  // the slope is uncertain as well
    rated.utilities[seed] += weights.loss * loss * (fall(baseline[seed]) / efold - 1.0);
  }
  const MeanDifference utility = mean_difference(rated.utilities, comparison.options.level);
  rated.mean = utility.mean;
  rated.figures = {{"name", comparison.precisions[index].name},
                   {"utility", {{"mean", utility.mean}, {"interval", utility.interval}}},
                   {"loss", loss},
                   {"time", time},
                   {"memory", memory},
                   {"energy", weights.energy > 0.0 ? Json(log_joules) : Json()}};
  return rated;
}

std::string less_or_more(double log_ratio, const char* what) {
  const double per_cent = 100.0 * (std::exp(log_ratio) - 1.0);
  if (std::abs(per_cent) < 0.5) return fmt::format("as much {}", what);
  return fmt::format("{:.0f} % {} {}", std::abs(per_cent), per_cent < 0.0 ? "less" : "more", what);
}

// In favour of a precision: "loss equal within 0.0075 nats, 0.71 times the time, 22 % less memory".
std::string evidence(const Rated& rated, const PrecisionComparison& comparison, const UtilityWeights& weights) {
  std::vector<std::string> parts;
  if (rated.index == comparison.baseline) return "the baseline";
  if (weights.loss > 0.0) {
    const Json summary = summary_of(comparison, rated.index);
    const double mean = number_of(summary["loss_difference"]["mean"]);
    parts.push_back(summary["verdict"] == "equal"
                        ? fmt::format("the loss equal within {:.2g} nats", margin_of(comparison))
                        : fmt::format("the loss {:+.4f} nats ({})", mean, summary["verdict"]));
  }
  const auto term = [&](const char* key) { return number_of(rated.figures[key]); };
  if (weights.time > 0.0) parts.push_back(fmt::format("{:.2f} times the time", std::exp(term("time"))));
  if (weights.memory > 0.0) parts.push_back(less_or_more(term("memory"), "memory"));
  if (weights.energy > 0.0) parts.push_back(less_or_more(term("energy"), "energy"));
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
  const auto named = [](const Rated& one) { return fmt::format("{} ({:+.3f})", one.figures["name"], one.mean); };
  std::vector<std::string> rivals;
  for (const Rated& other : all) {
    if (other.index == best.index) continue;
    std::vector<double> leads = best.utilities;
    for (size_t seed = 0; seed < leads.size(); ++seed) leads[seed] -= other.utilities[seed];
    const auto interval = mean_difference(leads, level).interval;
    if (!interval || !(interval->low > 0.0)) rivals.push_back(named(other));
  }
  if (!rivals.empty()) {
    return fmt::format("the lead of {} over {} may be chance: give more seeds", named(best), fmt::join(rivals, ", "));
  }
  if (weights.loss == 0.0 || best.index == comparison.baseline) return "";
  const auto& runs = comparison.precisions;
  return too_short(runs[comparison.baseline].runs, runs[best.index].runs, margin_of(comparison),
                   comparison.options.level);
}

}  // namespace

UtilityWeights parse_utility(const std::string& text) {
  UtilityWeights weights;
  const auto refuse = [&] {
    throw ConfigError(fmt::format(
        "--utility: expected weights of 0 or more such as loss=1,time=0.5,memory=0.2,energy=0.1, each once, got '{}'",
        text));
  };
  std::set<std::string> seen;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = part.find('=');
    const auto term = std::ranges::find(kTerms, part.substr(0, equals), &Term::name);
    if (equals == std::string::npos || term == std::end(kTerms) || !seen.insert(term->name).second) refuse();
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

std::optional<double> nats_per_efold(const Runs& baseline, double level) {
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
  const PrecisionRuns& baseline = comparison.precisions[comparison.baseline];
  const std::optional<double> efold = nats_per_efold(baseline.runs, comparison.options.level);
  const double base_joules = weights.energy > 0.0 ? energy(baseline.name) : 0.0;
  Json found = {{"weights", weights}, {"nats_per_efold", efold}, {"winner", nullptr}, {"precisions", Json::array()}};
  std::vector<Rated> all;
  std::vector<std::string> failed;
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    const PrecisionRuns& one = comparison.precisions[index];
    if (one.runs.empty()) continue;
    if (!succeeds(one)) {
      failed.push_back(one.name);
    } else if (succeeds(baseline)) {
      const double log_joules = weights.energy > 0.0 ? std::log(energy(one.name) / base_joules) : 0.0;
      all.push_back(rate(comparison, weights, efold.value_or(NAN), index, log_joules));
      found["precisions"].push_back(all.back().figures);
    }
  }
  const auto best = std::ranges::max_element(all, {}, &Rated::mean);
  const std::string why = !succeeds(baseline) ? fmt::format("{}, the baseline, failed with some seed", baseline.name)
                          : best == all.end() ? "nothing was trained with success"
                                              : too_thin(comparison, weights, *best, all);
  std::string sentence = fmt::format("By {}, the evidence is too thin to name a winner: {}", describe(weights), why);
  if (why.empty()) {
    found["winner"] = best->figures["name"];
    sentence = fmt::format("By {}, {} wins ({}): {}", describe(weights), found["winner"],
                           with_error("+")(best->figures["utility"]), evidence(*best, comparison, weights));
  }
  if (!failed.empty()) sentence += fmt::format(". Not rated, since some seed failed: {}", fmt::join(failed, ", "));
  found["sentence"] = sentence;
  return found;
}

}  // namespace mantissa
