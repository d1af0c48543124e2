#include "tools/run/guard/stragglers.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "tools/run/guard/spike_detector.h"

namespace mantissa {
namespace {

double total(const PhaseTimes& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

// The median of the values of all ranks but one.
template <typename Value>
double median_of_others(const std::vector<PhaseTimes>& by_rank, size_t but, const Value& value) {
  std::vector<double> others;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (rank != but) others.push_back(value(by_rank[rank]));
  }
  return spread_of(std::move(others)).median;
}

}  // namespace

StragglerDetector::StragglerDetector(const StragglerConfig& options, int ranks)
    : factor_(options.factor), is_slow_(static_cast<size_t>(ranks), 0) {}

std::vector<StragglerChange> StragglerDetector::judge(const std::vector<PhaseTimes>& by_rank, int64_t steps) {
  MANTISSA_CHECK(by_rank.size() == is_slow_.size(), "[stragglers] expected the times of {} ranks, got {}",
                 is_slow_.size(), by_rank.size());
  std::vector<StragglerChange> changes;
  if (by_rank.size() < 2) return changes;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const double mine = total(by_rank[rank]), others = median_of_others(by_rank, rank, total);
    const double limit = std::max((factor_ - 1.0) * others, kLeastExcess * static_cast<double>(steps));
    const bool is_slow = mine - others > (is_slow_[rank] ? 0.5 * limit : limit);
    if (is_slow == (is_slow_[rank] != 0)) continue;
    is_slow_[rank] = is_slow ? 1 : 0;
    StragglerChange change{
        .rank = static_cast<int>(rank), .is_slow = is_slow, .seconds = mine, .others_seconds = others};
    for (size_t phase = 0; phase < kStepPhases.size(); ++phase) {
      const double own = by_rank[rank][phase];
      const double usual = median_of_others(by_rank, rank, [phase](const PhaseTimes& times) { return times[phase]; });
      if (phase > 0 && own - usual <= change.phase_seconds - change.others_phase_seconds) continue;
      change.phase = kStepPhases[phase];
      change.phase_seconds = own;
      change.others_phase_seconds = usual;
    }
    changes.push_back(change);
  }
  return changes;
}

int StragglerDetector::slow_ranks() const { return std::accumulate(is_slow_.begin(), is_slow_.end(), 0); }

std::string describe(const StragglerChange& change, const std::string& host, int64_t steps) {
  if (!change.is_slow) return fmt::format("rank {} (node {}) is no longer slow", change.rank, host);
  const double ms = 1e3 / static_cast<double>(steps);
  return fmt::format(
      "rank {} (node {}) is slow: {:.1f} ms of work a step, others {:.1f} ms;\n  in {} {:.1f} ms, others {:.1f} ms",
      change.rank, host, ms * change.seconds, ms * change.others_seconds, change.phase, ms * change.phase_seconds,
      ms * change.others_phase_seconds);
}

}  // namespace mantissa
