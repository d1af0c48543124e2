#include "tools/lab/experiment/paired_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <numeric>
#include <ranges>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

// P(|T| <= t), theta = atan(t / sqrt(degrees)) in [0, pi/2).
double probability_within(double theta, int64_t degrees) {
  const double sine = std::sin(theta), square = std::cos(theta) * std::cos(theta);
  const bool is_odd = degrees % 2 == 1;
  double term = is_odd ? std::cos(theta) : 1.0, sum = degrees == 1 ? 0.0 : term;
  for (int64_t n = is_odd ? 3 : 2; n <= degrees - 2; n += 2) {
    term *= square * static_cast<double>(n - 1) / static_cast<double>(n);
    sum += term;
  }
  return is_odd ? 2.0 / std::numbers::pi * (theta + sine * sum) : sine * sum;
}

// With the interval of mean +- t standard errors.
MeanDifference spread_of(std::span<const double> values, double t) {
  const auto count = static_cast<double>(values.size());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  MeanDifference found{.pairs = static_cast<int64_t>(values.size()), .mean = sum / count};
  if (found.pairs == 1) return found;
  double squares = 0.0;
  for (const double value : values) squares += (value - found.mean) * (value - found.mean);
  found.stddev = std::sqrt(squares / (count - 1.0));
  const double half = t * found.stddev / std::sqrt(count);
  found.interval = Interval{.low = found.mean - half, .high = found.mean + half};
  return found;
}

}  // namespace

double student_t_quantile(double p, int64_t degrees) {
  MANTISSA_CHECK(p > 0.0 && p < 1.0 && degrees >= 1,
                 "[student_t_quantile] expected p in (0, 1) and at least 1 degree of freedom, got {} and {}", p,
                 degrees);
  if (p < 0.5) return -student_t_quantile(1.0 - p, degrees);
  const double within = 2.0 * p - 1.0;
  double low = 0.0, high = std::numbers::pi / 2;
  constexpr int kHalvings = 100;  // beyond the last bit
  for (int halving = 0; halving < kHalvings; ++halving) {
    const double middle = 0.5 * (low + high);
    (probability_within(middle, degrees) < within ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(degrees)) * std::tan(low);
}

double chi_squared_quantile(double z, double degrees) {
  const double part = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - part + z * std::sqrt(part), 3.0);
}

MeanDifference mean_difference(std::span<const double> differences, double level) {
  MANTISSA_CHECK(!differences.empty() && level > 0.0 && level < 1.0,
                 "[mean_difference] expected at least one pair and a level in (0, 1), got {} pairs and {}",
                 differences.size(), level);
  const auto pairs = static_cast<int64_t>(differences.size());
  return spread_of(differences, pairs > 1 ? student_t_quantile(0.5 + 0.5 * level, pairs - 1) : 0.0);
}

double LossMargin::of(double first_loss, double final_loss) const {
  if (!(final_loss < first_loss)) return 0.0;
  return is_share ? value * (first_loss - final_loss) : value;
}

LossMargin parse_loss_margin(const std::string& text) {
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string unit(rest, end);
  const bool is_share = unit == "%" || unit == " %";
  require<ConfigError>(
      error == std::errc() && (unit.empty() || is_share) && std::isfinite(value) && value > 0.0,
      "--margin: expected nats above 0, such as 0.01, or per cent of what the baseline learns, such as "
      "0.5%, got '{}'",
      text);
  return {.value = is_share ? value / 100.0 : value, .is_share = is_share};
}

std::string describe(const LossMargin& margin) {
  return margin.is_share ? fmt::format("{:g} % of what the baseline learns", 100.0 * margin.value)
                         : fmt::format("{:g} nats", margin.value);
}

double mean_margin(std::span<const double> margins) {
  const bool all_learnt = std::ranges::all_of(margins, [](double margin) { return margin > 0.0; });
  const double sum = std::accumulate(margins.begin(), margins.end(), 0.0);
  return all_learnt && !margins.empty() ? sum / static_cast<double>(margins.size()) : 0.0;
}

std::string_view name(ComparisonVerdict verdict) {
  constexpr std::string_view kNames[] = {"better", "equal", "worse", "inconclusive"};
  return kNames[static_cast<size_t>(verdict)];
}

std::optional<ComparisonVerdict> judge(std::span<const double> differences, std::span<const double> margins,
                                       double level, MorePairs more) {
  MANTISSA_CHECK(differences.size() == margins.size(), "[judge] expected a margin for each of {} pairs, got {}",
                 differences.size(), margins.size());
  const bool is_last = more == MorePairs::kNone;
  if (differences.size() >= 2) {
    std::vector<double> above(differences.begin(), differences.end()), below = above;
    for (size_t pair = 0; pair < margins.size(); ++pair) {
      above[pair] -= margins[pair];
      below[pair] += margins[pair];
    }
    const double t = student_t_quantile(0.5 + 0.5 * level, static_cast<int64_t>(differences.size()) - 1);
    const Interval beyond = *spread_of(above, t).interval, within = *spread_of(below, t).interval;
    if (mean_margin(margins) > 0.0 && beyond.high <= 0.0 && within.low >= 0.0) return ComparisonVerdict::kEqual;
    const Interval mean = *spread_of(differences, t).interval;
    if ((is_last ? mean.high : within.high) < 0.0) return ComparisonVerdict::kBetter;
    if ((is_last ? mean.low : beyond.low) > 0.0) return ComparisonVerdict::kWorse;
  }
  return is_last ? std::optional(ComparisonVerdict::kInconclusive) : std::nullopt;
}

double equivalence_power(double stddev, double margin, int64_t pairs, double level) {
  if (stddev <= 0.0 || margin <= 0.0) return margin > 0.0 ? 1.0 : 0.0;
  // In standard errors: equal is said if |mean| <= reach - t x, with the seen deviation x times the true one.
  const double reach = margin * std::sqrt(static_cast<double>(pairs)) / stddev;
  const auto degrees = static_cast<double>(pairs - 1);
  const double t = student_t_quantile(0.5 + 0.5 * level, pairs - 1);
  const double log_scale = std::log(2.0) + 0.5 * degrees * std::log(0.5 * degrees) - std::lgamma(0.5 * degrees);
  const auto density = [&](double x) {
    return std::exp(log_scale + (degrees - 1.0) * std::log(x) - 0.5 * degrees * x * x);
  };
  // By the midpoint rule; beyond the second limit the density is below 1e-30.
  const double end = std::min(reach / t, 1.0 + 12.0 / std::sqrt(degrees));
  constexpr int kParts = 2000;
  double power = 0.0;
  for (int part = 0; part < kParts; ++part) {
    const double x = (part + 0.5) * end / kParts;
    power += density(x) * std::erf((reach - t * x) / std::numbers::sqrt2) * end / kParts;
  }
  return std::min(power, 1.0);
}

int64_t pairs_for_power(double stddev, double margin, double level, double power) {
  const auto is_weak = [&](int pairs) { return !(equivalence_power(stddev, margin, pairs, level) >= power); };
  const auto all = std::views::iota(2, 10'001);
  const auto found = std::ranges::partition_point(all, is_weak);
  return found == all.end() ? 0 : *found;
}

double largest_stddev(double stddev, int64_t pairs) {
  constexpr double kNormal = -0.841621;  // the 20 % quantile of the normal distribution
  const auto degrees = static_cast<double>(pairs - 1);
  return stddev * std::sqrt(degrees / chi_squared_quantile(kNormal, degrees));
}

double unseen_share(int64_t pairs, double level) {
  return 1.0 - std::pow(1.0 - level, 1.0 / static_cast<double>(pairs));
}

std::string equal_text(int64_t pairs, double level) {
  return fmt::format(
      "Equal means equal on average: {} cannot exclude that up to {:.0f} % of runs are bad ({:g} % confidence). If one "
      "run in 20 is bad, {:.0f} % of such comparisons show none.",
      counted(pairs, "seed"), 100.0 * unseen_share(pairs, level), 100.0 * level,
      100.0 * std::pow(0.95, static_cast<double>(pairs)));
}

double binomial_tail(int64_t hits, int64_t trials, double chance) {
  double tail = 1.0, probability = std::pow(1.0 - chance, static_cast<double>(trials));
  for (int64_t k = 0; k < hits; ++k) {
    tail -= probability;
    probability *= static_cast<double>(trials - k) / static_cast<double>(k + 1) * chance / (1.0 - chance);
  }
  return tail;
}

double grubbs_limit(int64_t values, double error) {
  const auto count = static_cast<double>(values);
  const double t = student_t_quantile(1.0 - error / (2.0 * count), values - 2);
  return (count - 1.0) / std::sqrt(count) * std::sqrt(t * t / (count - 2.0 + t * t));
}

std::optional<Outlier> stands_apart(std::span<const double> differences, std::span<const double> margins,
                                    double level) {
  if (differences.size() < 3) return std::nullopt;
  const MeanDifference all = spread_of(differences, 0.0);
  const auto distance = [&](double difference) { return std::abs(difference - all.mean); };
  const auto place = std::ranges::max_element(differences, {}, distance) - differences.begin();
  Outlier found{.pair = static_cast<size_t>(place), .difference = differences[static_cast<size_t>(place)]};
  if (!(distance(found.difference) > grubbs_limit(all.pairs, kOutlierError) * all.stddev)) return std::nullopt;
  std::vector<double> others(differences.begin(), differences.end()), their_margins(margins.begin(), margins.end());
  others.erase(others.begin() + place);
  their_margins.erase(their_margins.begin() + place);
  found.without = *judge(others, their_margins, level, MorePairs::kNone);
  const bool decides = found.without != *judge(differences, margins, level, MorePairs::kNone);
  return decides || std::abs(found.difference) > margins[found.pair] ? std::optional(found) : std::nullopt;
}

std::string describe(const Outlier& outlier, uint64_t seed) {
  return fmt::format("seed {} stands apart from the others with {:+.2g} nats; without it the verdict is {}", seed,
                     outlier.difference, name(outlier.without));
}

std::string outlier_of(const nlohmann::json& summary) {
  const nlohmann::json::json_pointer text("/outlier/text");
  return summary.contains(text) ? summary.at(text).get<std::string>() : "";
}

void require_consistent(const std::string& file, const nlohmann::json& comparison, const nlohmann::json& entry) {
  const nlohmann::json& summary = entry.at("summary");
  const std::string where = fmt::format("{}: {}", file, entry.at("name").get<std::string>());
  const int64_t runs = summary.at("runs"), succeeded = summary.at("succeeded"), listed = std::ssize(entry.at("runs"));
  const auto difference = summary.at("loss_difference").get<std::optional<MeanDifference>>();
  const auto [pairs, mean, stddev, interval] = difference.value_or(MeanDifference{});
  require<ConfigError>(listed == runs && succeeded <= runs && pairs <= succeeded && pairs >= 0,
                       "{}: expected as many runs as are listed, {}, no more that succeeded, and no more pairs than "
                       "these, got {}, {} and {}: compare again",
                       where, listed, runs, succeeded, pairs);
  const std::string verdict = summary.at("verdict");
  const auto [low, high] = interval.value_or(Interval{NAN, NAN});  // which no verdict goes with
  require<ConfigError>(!interval || (low <= mean && mean <= high),
                       "{}: expected a loss_difference with low <= mean <= high, got {}, {} and {}: compare again",
                       where, low, mean, high);
  // Where a run failed, that decides. Margins that vary over pairs limit the mean alone.
  const double margin = comparison.at("setting").at("margin");
  const bool is_fixed = comparison.at("setting").value("margin_text", "").ends_with("nats");
  const double reach = is_fixed ? std::max(-low, high) : std::abs(mean);
  const bool agrees = pairs < runs || (verdict == "equal"    ? interval && reach <= margin * (1.0 + 1e-9)
                                       : verdict == "better" ? high < 0.0
                                                             : verdict != "worse" || low > 0.0);
  require<ConfigError>(agrees,
                       "{}: expected a verdict that goes with its loss_difference of {} ({} to {}) and the margin of "
                       "{}, got '{}': compare again",
                       where, mean, low, high, margin, verdict);
}

SequentialComparison::SequentialComparison(const SequentialOptions& options) : options_(options) {
  MANTISSA_CHECK(options.level > 0.0 && options.level < 1.0 && options.first_look >= 2 && options.look_every >= 1 &&
                     options.max_pairs >= options.first_look,
                 "[sequential_comparison] expected level in (0, 1), look_every >= 1 and 2 <= first_look <= max_pairs, "
                 "got {}, {}, {}, {}",
                 options.level, options.look_every, options.first_look, options.max_pairs);
}

void SequentialComparison::add(double difference, double margin) {
  MANTISSA_CHECK(!verdict_, "[sequential_comparison] expected no pair after the verdict '{}'", name(*verdict_));
  MANTISSA_CHECK(std::isfinite(difference) && margin >= 0.0 && std::isfinite(margin),
                 "[sequential_comparison] expected a finite difference and a margin of 0 or more, got {} and {}",
                 difference, margin);
  differences_.push_back(difference);
  margins_.push_back(margin);
  if (!options_.looks_at(pairs())) return;
  verdict_ = judge(differences_, margins_, options_.level_of_look(),
                   pairs() < options_.max_pairs ? MorePairs::kMayCome : MorePairs::kNone);
}

}  // namespace mantissa
