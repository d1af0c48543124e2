#include "tools/lab/experiment/sequential_comparison.h"

#include <cmath>

#include "core/base/check.h"

namespace mantissa {

std::string_view name(ComparisonVerdict verdict) {
  switch (verdict) {
    case ComparisonVerdict::kBetter:
      return "better";
    case ComparisonVerdict::kEqual:
      return "equal";
    case ComparisonVerdict::kWorse:
      return "worse";
    case ComparisonVerdict::kInconclusive:
      break;
  }
  return "inconclusive";
}

std::optional<ComparisonVerdict> judge(const std::optional<Interval>& interval, double margin, MorePairs more) {
  const bool is_last = more == MorePairs::kNone;
  if (interval) {
    if (-margin <= interval->low && interval->high <= margin) return ComparisonVerdict::kEqual;
    const double least = is_last ? 0.0 : margin;  // that is told from 0
    if (interval->high < -least) return ComparisonVerdict::kBetter;
    if (interval->low > least) return ComparisonVerdict::kWorse;
  }
  return is_last ? std::optional(ComparisonVerdict::kInconclusive) : std::nullopt;
}

SequentialComparison::SequentialComparison(const SequentialOptions& options) : options_(options) {
  MANTISSA_CHECK(options.margin >= 0.0 && options.level > 0.0 && options.level < 1.0 && options.first_look >= 2 &&
                     options.look_every >= 1 && options.max_pairs >= options.first_look,
                 "[sequential_comparison] expected a margin of at least 0, a level in (0, 1), 1 <= look_every and 2 "
                 "<= first_look <= max_pairs, got {}, {}, {}, {}, {}",
                 options.margin, options.level, options.look_every, options.first_look, options.max_pairs);
}

void SequentialComparison::add(double baseline, double candidate) {
  MANTISSA_CHECK(!verdict_, "[sequential_comparison] expected no pair behind the verdict '{}'", name(*verdict_));
  MANTISSA_CHECK(std::isfinite(baseline) && std::isfinite(candidate),
                 "[sequential_comparison] expected finite losses, got {} and {}", baseline, candidate);
  differences_.push_back(candidate - baseline);
  if (!options_.looks_at(pairs())) return;
  verdict_ = judge(difference().interval, options_.margin,
                   pairs() < options_.max_pairs ? MorePairs::kMayCome : MorePairs::kNone);
}

}  // namespace mantissa
