#include "tools/run/guard/outliers.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr double kNormalDeviations = 1.4826;  // in one MAD: see the header
constexpr double kLeastShare = 1e-3;          // of the median, that the scale is at least
constexpr double kLeastScale = 1e-12;         // where the median is 0, too

double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

double total(const PhaseTimes& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

// The median of the values of all ranks, or nodes, but one.
template <typename Times, typename Value>
double median_of_others(const std::vector<Times>& by_rank, size_t but, const Value& value) {
  std::vector<double> others;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (rank != but) others.push_back(value(by_rank[rank]));
  }
  return spread_of(std::move(others)).median;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  MANTISSA_CHECK(!values.empty(), "[spread_of] there are no values");
  const double median = median_of(values);
  for (double& value : values) value = std::abs(value - median);
  const double scale = kNormalDeviations * median_of(values);
  return {.median = median,
          .scale = std::max({scale, kLeastShare * std::abs(median), kLeastScale}),
          .count = static_cast<int64_t>(values.size())};
}

SpikeLimits SpikeDetector::limits(int64_t step) const {
  SpikeLimits limits;
  if (options_.action == SpikeAction::kNone) return limits;
  std::vector<double> losses, norms;
  for (const Sample& sample : samples_) {
    if (sample.step > step - 2) break;
    losses.push_back(sample.loss);
    norms.push_back(sample.norm);
  }
  const auto window = static_cast<size_t>(options_.window);
  if (2 * losses.size() < window) return limits;
  const size_t older = losses.size() > window ? losses.size() - window : 0;
  const auto limit_of = [older](std::vector<double>& values, double z, Spread& spread) {
    if (z == 0.0) return SpikeLimits::kNone;
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(older));
    spread = spread_of(std::move(values));
    return spread.median + z * spread.scale;
  };
  limits.loss = limit_of(losses, options_.loss_z, limits.losses);
  limits.norm = limit_of(norms, options_.grad_norm_z, limits.norms);
  return limits;
}

void SpikeDetector::record(const Sample& sample) {
  if (options_.action == SpikeAction::kNone || !std::isfinite(sample.loss) || !std::isfinite(sample.norm)) return;
  samples_.push_back(sample);
  // One more than the window: the newest sample may belong to the step before the planned step.
  while (samples_.size() > static_cast<size_t>(options_.window) + 1) samples_.pop_front();
}

std::string describe(const SpikeLimits& limits, double loss, double norm) {
  std::string text;
  const auto add = [&](const char* name, double value, double limit, const Spread& spread) {
    if (value <= limit) return;  // false for NaN
    text += fmt::format("{}the {} {:.4f} is {:.1f} deviations above {:.4f}, the median of {} steps",
                        text.empty() ? "" : ", ", name, value, spread.z(value), spread.median, spread.count);
  };
  add("loss", loss, limits.loss, limits.losses);
  add("gradient norm", norm, limits.norm, limits.norms);
  return text;
}

void SpikeDetector::restore(const std::vector<Sample>& samples) {
  samples_.clear();
  for (const Sample& sample : samples) record(sample);
}

// ---- Stragglers

std::vector<StragglerChange> StragglerDetector::judge(const std::vector<PhaseTimes>& by_rank, int64_t steps) {
  MANTISSA_CHECK(by_rank.size() == is_slow_.size(), "[stragglers] expected the times of {} ranks, got {}",
                 is_slow_.size(), by_rank.size());
  std::vector<StragglerChange> changes;
  if (by_rank.size() < 2) return changes;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const double mine = total(by_rank[rank]), others = median_of_others(by_rank, rank, total);
    if (!flips(mine, others, kLeastExcess * static_cast<double>(steps), is_slow_[rank])) continue;
    StragglerChange change{
        .rank = static_cast<int>(rank), .is_slow = is_slow_[rank] != 0, .seconds = mine, .others_seconds = others};
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

bool StragglerDetector::flips(double mine, double usual, double least_excess, uint8_t& is_slow) const {
  const double limit = std::max((factor_ - 1.0) * usual, least_excess);
  const uint8_t now = mine - usual > (is_slow != 0 ? 0.5 * limit : limit) ? 1 : 0;
  return std::exchange(is_slow, now) != now;
}

std::vector<LinkChange> StragglerDetector::judge_links(const std::vector<double>& by_node) {
  std::vector<LinkChange> found;
  if (by_node.size() < 2) return found;
  is_slow_link_.resize(1 + by_node.size());
  const auto judge_one = [&](int node, double seconds, double usual) {
    uint8_t& is_slow = is_slow_link_[static_cast<size_t>(1 + node)];
    if (!flips(seconds, usual, kLeastLinkExcess, is_slow)) return;
    found.push_back({.node = node, .is_slow = is_slow != 0, .seconds = seconds, .usual_seconds = usual});
  };
  // Both ends of the only link see the same time: which of two nodes is slow cannot be told.
  for (size_t node = 0; by_node.size() > 2 && node < by_node.size(); ++node) {
    judge_one(static_cast<int>(node), by_node[node], median_of_others(by_node, node, std::identity()));
  }
  const double least = *std::ranges::min_element(by_node);
  judge_one(-1, least, least_seconds_);
  least_seconds_ = std::min(least_seconds_, least);
  return found;
}

NodeLinks::NodeLinks(Communicator& all) : all_(all) {
  const std::vector<RankPlace> places = all_gather_records(all, all.place());
  for (const RankPlace& place : places) {
    if (place.local_rank == 0) leaders_.push_back(place.rank);
  }
  const auto nodes = static_cast<int>(leaders_.size());
  // In round k the numbers of partners add up to k, modulo the nodes: each node has another partner in each round, and
  // is alone in one at most. Ranks without a partner take part, since the watchdog compares counts of collectives.
  constexpr int kMostRounds = 4;
  for (int round = 1; nodes > 1 && round <= std::min(nodes, kMostRounds); ++round) {
    const auto found = std::ranges::find(leaders_, all.rank());
    const auto node = static_cast<int>(found - leaders_.begin());
    const auto other = static_cast<size_t>((nodes + round - node) % nodes);
    const int partner = found == leaders_.end() ? all.rank() : leaders_[other];
    pairs_.push_back(all.split(std::min(all.rank(), partner), partner == all.rank() ? 1 : 2));
  }
}

double NodeLinks::measure() {
  double least = std::numeric_limits<double>::infinity();
  if (pairs_.empty()) return least;
  // The first exchange of a round is not timed: partners meet in it, and it uses up what a link takes at once.
  constexpr int kExchanges = 3;
  std::vector<std::byte> memory(2 * kBytes);
  const auto storage = std::make_shared<Storage>(memory.data(), memory.size(), Device{}, nullptr);
  HostStream stream;
  all_.barrier();  // the messages of the step have arrived
  for (const auto& pair : pairs_) {
    const Tensor rows(storage, DType::kU8, Shape{pair->size(), kBytes});
    for (int exchange = 0; exchange < kExchanges; ++exchange) {
      const auto start = std::chrono::steady_clock::now();
      pair->all_gather(rows.slice(pair->rank() * kBytes, kBytes), rows, stream)->wait();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (exchange > 0 && pair->size() > 1) least = std::min(least, elapsed.count());
    }
  }
  return least;
}

std::string describe(const StragglerChange& change, const std::string& host, int64_t steps) {
  if (!change.is_slow) return fmt::format("rank {} (node {}) is no longer slow", change.rank, host);
  const double ms = 1e3 / static_cast<double>(steps);
  return fmt::format(
      "rank {} (node {}) is slow: {:.1f} ms of work a step, others {:.1f} ms;\n  in {} {:.1f} ms, others {:.1f} ms",
      change.rank, host, ms * change.seconds, ms * change.others_seconds, change.phase, ms * change.phase_seconds,
      ms * change.others_phase_seconds);
}

std::string describe(const LinkChange& change, const std::vector<std::string>& hosts) {
  const bool is_of_all = change.node < 0;
  std::string text = fmt::format("the links of all {} nodes are", hosts.size());
  if (is_of_all && hosts.size() == 2) text = fmt::format("the link between node {} and node {} is", hosts[0], hosts[1]);
  if (!is_of_all) text = fmt::format("the link of node {} is", hosts[static_cast<size_t>(change.node)]);
  if (!change.is_slow) return text + " no longer slow";
  const auto mb_s = [](double seconds) { return 1e-6 * static_cast<double>(NodeLinks::kBytes) / seconds; };
  return fmt::format(
      "{} slow: {:.1f} MB/s, {} {:.1f} MB/s;\n  look at adapters, cables, switch ports, and other traffic there", text,
      mb_s(change.seconds), is_of_all ? "earlier" : "other nodes", mb_s(change.usual_seconds));
}

}  // namespace mantissa
