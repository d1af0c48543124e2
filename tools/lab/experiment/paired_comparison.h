// Statistics of paired runs: the gain of one way of training over another, from runs that differ in nothing else.
//
// SequentialComparison adds pairs until they show which of two is better, or that they are equal, or there have been
// enough. It compares losses: smaller is better. For the differences d = candidate - baseline, with the true mean D, an
// interval of, say, 95 % and a margin m below which a difference does not matter:
//
//   equal         the interval lies in [-m, m]: |D| <= m. This is the test of equivalence by two one-sided tests
//                 (Schuirmann, J. Pharmacokin. Biopharm. 15, 1987), each at half of the level's error, or less.
//   better        the interval lies below -m; with no further pair to come, below 0.
//   worse         the interval lies above m; with no further pair to come, above 0.
//   inconclusive  none of these, with no further pair to come.
//
// "better" means D < 0 and "worse" D > 0. A small difference that is known well is "equal" although it is not 0.
//
// Looking after every pair and stopping at the first answer would be wrong more often than a single look. So all
// possible looks share the error 1 - level equally (Bonferroni): each uses an interval of the level 1 - (1 - level) /
// looks. An answer is wrong only if one of these intervals misses D. So the probability of any wrong answer is at most
// 1 - level, whatever D is and whenever the comparison stops.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace mantissa {

struct Interval {
  double low = 0.0, high = 0.0;
};

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

// Statistics of differences that are assumed to be independent and normal.
struct MeanDifference {
  int64_t pairs = 0;
  double mean = 0.0;
  double stddev = 0.0;                 // of one difference; 0 for one pair
  std::optional<Interval> interval{};  // that contains the true mean with probability `level`; none for one pair
};

// mean +- t_(n-1) stddev / sqrt(n), level in (0, 1) (Student, "The Probable Error of a Mean", 1908). At least one
// value.
MeanDifference mean_difference(std::span<const double> differences, double level);
// The same for candidate[i] - baseline[i]; the sizes must be equal.
MeanDifference paired_difference(std::span<const double> baseline, std::span<const double> candidate, double level);

// The default margin of equal losses: the standard deviation of the final loss over seeds, which chance changes anyway.
// 0 for fewer than two seeds, and if one run has not learnt: losses of runs that diverge spread without bound, and
// anything would be equal to them. Both in nats a token, in the order of seeds (TrainingRecord::first_loss(),
// final_loss()).
double seed_margin(std::span<const double> first_losses, std::span<const double> final_losses);

enum class ComparisonVerdict : uint8_t { kBetter, kEqual, kWorse, kInconclusive };
std::string_view name(ComparisonVerdict verdict);  // "better", "equal", "worse", "inconclusive"

enum class MorePairs : uint8_t { kMayCome, kNone };

// The verdict of an interval, as above, or none yet. Without an interval: none, or inconclusive. The margin is at least
// 0.
std::optional<ComparisonVerdict> judge(const std::optional<Interval>& interval, double margin, MorePairs more);

struct SequentialOptions {
  double margin = 0.0;     // of equivalence, in units of the loss
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

  // Adds the finite losses of one more pair. Not after verdict() has given an answer.
  void add(double baseline, double candidate);
  // None while another pair is needed; kInconclusive at max_pairs at the latest.
  std::optional<ComparisonVerdict> verdict() const { return verdict_; }
  // Over all pairs, with the interval of a look. At least one pair.
  MeanDifference difference() const { return mean_difference(differences_, options_.level_of_look()); }
  int64_t pairs() const { return static_cast<int64_t>(differences_.size()); }

 private:
  SequentialOptions options_;
  std::vector<double> differences_;
  std::optional<ComparisonVerdict> verdict_{};
};

}  // namespace mantissa
