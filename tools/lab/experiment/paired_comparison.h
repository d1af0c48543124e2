// Statistics of paired runs: the gain of a way of training over another, from runs that differ in nothing else.
//
// SequentialComparison adds pairs until they show the better of the two, or that they are equal, or there have been
// enough. It compares losses: smaller is better. Pair i has the difference d_i = candidate - baseline and the margin
// m_i, below which a difference does not matter. With true means D and M, and intervals of, say, 95 % of a mean:
//
//   equal         the interval of d - m has no part above 0, and the interval of d + m no part below: -M <= D <= M.
//                 These are two one-sided tests of equivalence (Schuirmann, J. Pharmacokin. Biopharm. 15, 1987), each
//                 at half of the level's error. A margin measured with every pair, such as a share of the run's
//                 learning, is part of the test, so that its uncertainty is within the error.
//   better        the interval of d + m lies below 0; with no further pair to come, that of d.
//   worse         the interval of d - m lies above 0; with no further pair to come, that of d.
//   inconclusive  none of these, with no further pair to come.
//
// "better" means D < 0 and "worse" D > 0. A small difference that is known well is "equal" although it is not 0.
//
// Looking after every pair and stopping at the first answer would be wrong more often than a single look. So all
// possible looks share the error 1 - level equally (Bonferroni): each uses an interval of the level 1 - (1 - level) /
// looks. An answer is wrong only if an interval misses its mean. So whatever D is and whenever the comparison stops,
// the probability of a wrong answer is at most 1 - level, and that of a wrong "equal" at most half of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/state/optional_json.h"

namespace mantissa {

struct Interval {
  double low = 0.0, high = 0.0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interval, low, high)

// The quantile of Student's t distribution: P(T <= t) = p, with p in (0, 1) and at least 1 degree of freedom.
//
// From the distribution function for whole degrees n (Abramowitz and Stegun, "Handbook of Mathematical Functions",
// 1964, 26.7.3 and 26.7.4), with theta = atan(t / sqrt(n)):
//
//   n odd:  P(|T| <= t) = 2 / pi (theta + sin theta (cos theta + 2/3 cos^3 theta + ...
//                         + (2 4 ... (n-3)) / (3 5 ... (n-2)) cos^(n-2) theta)); for n = 1, 2 theta / pi
//   n even: P(|T| <= t) = sin theta (1 + 1/2 cos^2 theta + ... + (1 3 ... (n-3)) / (2 4 ... (n-2)) cos^(n-2) theta)
//
// inverted by bisection of theta.
double student_t_quantile(double p, int64_t degrees);

// The quantile of the chi-squared distribution at the probability with which a standard normal value is below z, by
// Wilson and Hilferty (PNAS 17, 1931): n (1 - 2 / 9n + z sqrt(2 / 9n))^3. Within 1 % for 20 % and 2 degrees or more,
// and for 5 % and 7 or more; too small for fewer.
double chi_squared_quantile(double z, double degrees);

// Statistics of differences that are assumed to be independent and normal.
struct MeanDifference {
  int64_t pairs = 0;
  double mean = 0.0;
  double stddev = 0.0;                 // of a difference; 0 for one pair
  std::optional<Interval> interval{};  // contains the true mean with probability `level`; empty for one pair
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeanDifference, pairs, mean, stddev, interval)

// mean +- t_(n-1) stddev / sqrt(n), level in (0, 1) (Student, "The Probable Error of a Mean", 1908). Needs a value.
MeanDifference mean_difference(std::span<const double> differences, double level);

// The margin of equal losses: nats per token, or a share of what the baseline learns in a run.
struct LossMargin {
  // DeepSeek-V3 (arXiv 2412.19437, section 3.3) takes 0.25 % of the loss itself for less than training's randomness.
  double value = 0.0025;
  bool is_share = true;

  // The margin of a pair: 0, to which nothing is equal, if the baseline did not get below the loss of its first
  // weights. Losses in nats per token, as TrainingRecord::first_loss(), final_loss().
  double of(double first_loss, double final_loss) const;
};
// "0.01" (nats) or "0.5%" (of what the baseline learns). ConfigError for other texts.
LossMargin parse_loss_margin(const std::string& text);
std::string describe(const LossMargin& margin);  // "0.25 % of what the baseline learns", "0.01 nats"

// Their mean; 0 if a margin is 0, or without margins.
double mean_margin(std::span<const double> margins);

enum class ComparisonVerdict : uint8_t { kBetter, kEqual, kWorse, kInconclusive };
std::string_view name(ComparisonVerdict verdict);  // "better", "equal", "worse", "inconclusive"

// Equal losses of runs that are too short say nothing of longer runs. `why`: too_short().
inline ComparisonVerdict unless_short(ComparisonVerdict verdict, const std::string& why) {
  return verdict == ComparisonVerdict::kEqual && !why.empty() ? ComparisonVerdict::kInconclusive : verdict;
}

enum class MorePairs : uint8_t { kMayCome, kNone };

// The verdict of pairs, as above, or none yet. For fewer than two pairs: none, or inconclusive. `margins`: one for each
// pair, at least 0. A pair whose margin is 0 is equal to nothing, and then no pairs are.
std::optional<ComparisonVerdict> judge(std::span<const double> differences, std::span<const double> margins,
                                       double level, MorePairs more);

// The probability that `pairs` pairs without a true difference are judged equal, if a difference has this standard
// deviation: the mean of 2 Phi(margin sqrt(pairs) / stddev - t x) - 1, where it is positive, over the seen deviation x
// times the true one, whose square has a chi-squared distribution (Phillips, J. Pharmacokin. Biopharm. 18, 1990). At
// least two pairs.
double equivalence_power(double stddev, double margin, int64_t pairs, double level);
// The fewest pairs with this power, up to 10,000; 0 if there are none.
int64_t pairs_for_power(double stddev, double margin, double level, double power);
inline constexpr double kWantedPower = 0.8;
// The upper 80 % limit of the standard deviation that so many pairs, two at least, have shown. The number of pairs that
// this deviation needs has the wanted power with a probability of 80 %, and also on average over such first pairs
// (Browne, Statistics in Medicine 14, 1995). That of the shown deviation has a power of 50 to 71 % after 3 pairs.
double largest_stddev(double stddev, int64_t pairs);

// Up to this share of all runs may be bad although none of `pairs` is, at this level: 1 - (1 - level)^(1 / pairs).
double unseen_share(int64_t pairs, double level);
// Says so beside the verdict "equal", and how often no pair shows a bad run if one run in 20 is bad.
std::string equal_text(int64_t pairs, double level);

// The probability of `hits` or more in so many trials, each a hit with the probability `chance`.
double binomial_tail(int64_t hits, int64_t trials, double chance);

// The greatest distance from the mean, in standard deviations, among so many normal values (at least 3) is above this
// with the probability `error` (Grubbs, Technometrics 11, 1969, two-sided).
double grubbs_limit(int64_t values, double error);
inline constexpr double kOutlierError = 0.01;
// A difference that stands apart from the others, as a rare bad run makes it. It counts in the verdict as any other.
// Real differences have heavy tails: among many, one nearly always stands apart. A rule that then refused "equal" would
// refuse it the more often, the more pairs there are.
struct Outlier {
  size_t pair = 0;
  double difference = 0.0;
  ComparisonVerdict without = ComparisonVerdict::kInconclusive;  // judge() of the other pairs, with no further to come
};
// The difference farthest from the mean, if it is beyond grubbs_limit(), and either beyond its margin or the others
// have another verdict. Fewer than 3 pairs show none.
std::optional<Outlier> stands_apart(std::span<const double> differences, std::span<const double> margins, double level);
std::string describe(const Outlier& outlier, uint64_t seed);
// The same from a summary in a file of `compare`; empty without an outlier, and for files of earlier versions.
std::string outlier_of(const nlohmann::json& summary);
// ConfigError where figures of a trained precision, an entry of a file of `compare`, contradict each other.
void require_consistent(const std::string& file, const nlohmann::json& comparison, const nlohmann::json& entry);

struct SequentialOptions {
  double level = 0.95;     // of the whole comparison
  int64_t first_look = 3;  // pairs before the first look, at least 2: intervals of two pairs are seldom useful
  int64_t look_every = 1;  // pairs, after the first look; the last look is at max_pairs
  int64_t max_pairs = 10;  // at least first_look

  bool looks_at(int64_t pairs) const {
    return pairs == max_pairs || (pairs >= first_look && (pairs - first_look) % look_every == 0);
  }
  int64_t looks() const { return 1 + (max_pairs - first_look + look_every - 1) / look_every; }
  double level_of_look() const { return 1.0 - (1.0 - level) / static_cast<double>(looks()); }
};

class SequentialComparison {
 public:
  // ContractError for invalid options.
  explicit SequentialComparison(const SequentialOptions& options);

  // Adds the finite difference and the margin of one more pair. Not after verdict() has given an answer.
  void add(double difference, double margin);
  // None while another pair is needed; kInconclusive at max_pairs at the latest.
  std::optional<ComparisonVerdict> verdict() const { return verdict_; }
  // Over all pairs, with the interval of a look. At least one pair.
  MeanDifference difference() const { return mean_difference(differences_, options_.level_of_look()); }
  int64_t pairs() const { return static_cast<int64_t>(differences_.size()); }
  std::optional<Outlier> stands_apart() const {
    return mantissa::stands_apart(differences_, margins_, options_.level_of_look());
  }

 private:
  SequentialOptions options_;
  std::vector<double> differences_, margins_;
  std::optional<ComparisonVerdict> verdict_{};
};

}  // namespace mantissa
