// SequentialComparison: pairs of runs, one after the other, until they say which of two is better, or that they are
// equal, or there have been enough of them.
//
// What is compared is a loss: smaller is better. Of the differences d = candidate - baseline with the true mean D there
// are 95 % intervals, say, and a margin m below which a difference is of no importance:
//
//   equal         the interval lies in [-m, m]: |D| <= m. This is the test of equivalence by two one-sided tests
//                 (Schuirmann, J. Pharmacokin. Biopharm. 15, 1987), each at half of the level's error, or less.
//   better        the interval lies below -m; when no pair is to come, below 0.
//   worse         the interval lies above m; when no pair is to come, above 0.
//   inconclusive  none of these, when no pair is to come.
//
// "better" says D < 0 and "worse" D > 0; so where a small difference is known well, it is "equal" although it is not 0.
//
// Who looks after every pair and stops at the first answer would be wrong more often than one look is. So the error 1 -
// level is shared equally by all looks that there may be (Bonferroni): each has an interval of the level 1 - (1 -
// level) / looks. An answer is wrong only if one of these intervals misses D; therefore the probability of any wrong
// answer is at most 1 - level, whatever D is and whenever one stops.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/lab/experiment/paired_difference.h"

namespace mantissa {

enum class ComparisonVerdict : uint8_t { kBetter, kEqual, kWorse, kInconclusive };

std::string_view name(ComparisonVerdict verdict);  // "better", "equal", "worse", "inconclusive"

enum class MorePairs : uint8_t { kMayCome, kNone };

// What an interval says, as above; nothing if it says nothing yet. Without an interval: nothing, or inconclusive. The
// margin is at least 0.
std::optional<ComparisonVerdict> judge(const std::optional<Interval>& interval, double margin, MorePairs more);

struct SequentialOptions {
  double margin = 0.0;     // of equivalence, in units of the loss
  double level = 0.95;     // of the whole comparison
  int64_t first_look = 3;  // pairs before the first look, 2 or more: intervals of two pairs are seldom of use
  int64_t look_every = 1;  // pairs, from the first look on; the last look is at max_pairs
  int64_t max_pairs = 10;  // at least first_look

  bool looks_at(int64_t pairs) const {
    return pairs == max_pairs || (pairs >= first_look && (pairs - first_look) % look_every == 0);
  }
  int64_t looks() const { return 1 + (max_pairs - first_look + look_every - 1) / look_every; }
  // Of the interval of one look.
  double level_of_look() const { return 1.0 - (1.0 - level) / static_cast<double>(looks()); }
};

class SequentialComparison {
 public:
  // ContractError for options that make no sense.
  explicit SequentialComparison(const SequentialOptions& options);

  // The losses of one more pair, which are finite. Not after verdict() has given an answer.
  void add(double baseline, double candidate);
  // Of the looks so far; nothing as long as another pair is needed; kInconclusive at max_pairs at the latest.
  std::optional<ComparisonVerdict> verdict() const { return verdict_; }
  // Of all pairs, with the interval of a look. At least one pair.
  MeanDifference difference() const { return mean_difference(differences_, options_.level_of_look()); }
  int64_t pairs() const { return static_cast<int64_t>(differences_.size()); }

 private:
  SequentialOptions options_;
  std::vector<double> differences_;
  std::optional<ComparisonVerdict> verdict_{};
};

}  // namespace mantissa
