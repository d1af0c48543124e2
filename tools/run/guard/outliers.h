// Steps and ranks that stand out. SpikeDetector: limits above which the loss or the gradient norm of a step is a spike.
//
// The limit is median + z * scale over a window of applied steps, with scale = 1.4826 * MAD. MAD, the median of the
// distances from the median, is not moved by the spikes themselves; 1.4826 = 1 / quantile(3/4) of the normal
// distribution makes it that distribution's standard deviation (Rousseeuw & Croux 1993, "Alternatives to the Median
// Absolute Deviation", J. Am. Stat. Assoc. 88). Only values above the median can be spikes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "tools/config/config.h"

namespace mantissa {

// Where the values of a window lie.
struct Spread {
  double median = 0.0;
  double scale = 0.0;
  int64_t count = 0;  // of values

  double z(double value) const { return (value - median) / scale; }
};
// The scale is at least a thousandth of the median: where MAD is 0, every change would be a spike. `values`: not empty.
Spread spread_of(std::vector<double> values);

struct SpikeLimits {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  double loss = kNone, norm = kNone;
  Spread losses{}, norms{};  // of the window, where there are limits
};

// "the loss 9.1034 is 23.1 deviations above 4.2011, the median of 128 steps".
std::string describe(const SpikeLimits& limits, double loss, double norm);

class SpikeDetector {
 public:
  // An applied step.
  struct Sample {
    int64_t step = 0;
    double loss = 0.0, norm = 0.0;
    bool operator==(const Sample&) const = default;
  };

  explicit SpikeDetector(const StopRulesConfig& options) : options_(options) {}

  // Whether updates of spikes are held back: for every action but a warning.
  bool holds_back() const { return options_.action != SpikeAction::kNone && options_.action != SpikeAction::kWarn; }
  // The limits of a step, from applied steps without the last: a GPU plans a step while the previous step runs, and all
  // devices decide alike. No limits until half of the window is known.
  SpikeLimits limits(int64_t step) const;
  // An applied step. Values that are not finite stay out.
  void record(const Sample& sample);

  // For checkpoints: oldest first. restore() keeps what the window holds.
  std::vector<Sample> state() const { return {samples_.begin(), samples_.end()}; }
  void restore(const std::vector<Sample>& samples);

 private:
  StopRulesConfig options_;
  std::deque<Sample> samples_;  // of the window, and of the step after it
};

// ---- Stragglers: ranks slower than the others, by the time that each spends at work within steps. A slow
// rank makes the others wait; time in which a rank waits for others does not count. Neither does waiting for a link, so
// links of nodes are measured apart.

// The phases of a step that are compared, as tools/train names them. On a GPU they hold the host's part.
inline constexpr std::array<std::string_view, 7> kStepPhases = {"step",   "data",   "forward", "backward",
                                                                "reduce", "decide", "update"};

// Seconds of work in each of kStepPhases.
using PhaseTimes = std::array<double, kStepPhases.size()>;

// A rank that has become slow, or is no longer.
struct StragglerChange {
  int rank = 0;
  bool is_slow = false;
  double seconds = 0.0, others_seconds = 0.0;  // of work in the window, and the median of the other ranks
  // The phase with the largest excess.
  std::string_view phase{};
  double phase_seconds = 0.0, others_phase_seconds = 0.0;
};

// A link that has become slow, or is no longer.
struct LinkChange {
  int node = -1;  // -1: all links at once; two nodes share their only link
  bool is_slow = false;
  double seconds = 0.0, usual_seconds = 0.0;  // of an exchange; usual: of the other nodes, or of all links earlier
};

class StragglerDetector {
 public:
  static constexpr double kLeastExcess = 1e-3;      // seconds a step: less is noise of the system
  static constexpr double kLeastLinkExcess = 2e-4;  // seconds an exchange of NodeLinks: likewise

  StragglerDetector(const StragglerConfig& options, int ranks)
      : factor_(options.factor), is_slow_(static_cast<size_t>(ranks), 0) {}

  // The times of all ranks in a window of so many steps, by rank. A rank becomes slow when it exceeds the median of the
  // others by the factor and by kLeastExcess, and is so until it comes below half of that.
  std::vector<StragglerChange> judge(const std::vector<PhaseTimes>& by_rank, int64_t steps);
  int slow_ranks() const { return std::accumulate(is_slow_.begin(), is_slow_.end(), 0); }

  // Seconds of NodeLinks::measure() by node. A link is slow by the same rule: among three nodes and more beside the
  // median of the other nodes, and all links at once beside the least time of earlier calls.
  std::vector<LinkChange> judge_links(const std::vector<double>& by_node);
  int slow_links() const { return std::accumulate(is_slow_link_.begin(), is_slow_link_.end(), 0); }

 private:
  // Updates `is_slow`: whether `mine` exceeds `usual`. False if it stays.
  bool flips(double mine, double usual, double least_excess, uint8_t& is_slow) const;

  double factor_;
  std::vector<uint8_t> is_slow_;                                    // by rank
  std::vector<uint8_t> is_slow_link_;                               // all links at once, then by node
  double least_seconds_ = std::numeric_limits<double>::infinity();  // of an exchange, in earlier calls
};

// The links of a job's nodes, measured by small exchanges between pairs of nodes. Nothing is sent on a single node.
class NodeLinks {
 public:
  static constexpr int64_t kBytes = int64_t{512} << 10;  // that each node of a pair sends

  // Splits `all`, which must outlive the object. Collective.
  explicit NodeLinks(Communicator& all);
  // Seconds of an exchange of kBytes in both directions, with the fastest of several other nodes: a node is not slow
  // because its partner is. Infinity on ranks that do not stand for their node. Collective.
  double measure();
  // The rank that stands for each node.
  const std::vector<int>& leaders() const { return leaders_; }

 private:
  Communicator& all_;
  std::vector<int> leaders_;
  std::vector<std::unique_ptr<Communicator>> pairs_;  // by round; ranks without a partner are alone
};

// "rank 3 (node b) is slow: 31.0 ms of work a step, others 14.8 ms; in data 18.0 ms, others 2.1 ms", or "rank 3 (node
// b) is no longer slow". `steps`: of the window.
std::string describe(const StragglerChange& change, const std::string& host, int64_t steps);

// "the link of node c is slow: 4.9 MB/s, other nodes 23.8 MB/s; ...", "the link between node a and node b is slow: 4.9
// MB/s, earlier 23.8 MB/s; ...", or "the links of all 4 nodes are no longer slow". `hosts`: by node.
std::string describe(const LinkChange& change, const std::vector<std::string>& hosts);

}  // namespace mantissa
