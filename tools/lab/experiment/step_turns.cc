#include "tools/lab/experiment/step_turns.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "comm/communicator.h"
#include "core/base/error.h"
#include "tools/config/precision_phases.h"
#include "tools/run/metrics/run_statistics.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

constexpr int64_t kStepsBeforeTiming = 3;  // allocate memory, create kernels and capture graphs

// Training steps only.
Config without_surroundings(const Config& given) {
  Config config = in_phase(given, 0);
  config.probe.enabled = false;
  config.profile = false;
  return config;
}

// One configuration in training.
class Contender {
 public:
  Contender(const Config& config, Communicator& communicator)
      : config_(without_surroundings(config)),
        communicator_(communicator),
        session_(config_, communicator),
        step_(session_) {}

  // Seconds a step on the slowest rank, over the applied steps out of `steps`; NaN if none was applied.
  double turn(int64_t steps) {
    double seconds = 0.0;
    int64_t applied = 0;
    const auto take = [&](const std::vector<StepReport>& reports) {
      for (const StepReport& report : reports) {
        if (!report.applied) continue;  // it may include a second run to find the reason
        seconds += report.seconds;
        ++applied;
      }
    };
    for (int64_t i = 0; i < steps; ++i) take(step_.run());
    take(step_.finish());
    if (applied == 0) return NAN;  // on all ranks
    return std::ranges::max(all_gather_records(communicator_, seconds)) / static_cast<double>(applied);
  }

 private:
  const Config config_;
  Communicator& communicator_;
  Session session_;
  TrainStep step_;
};

using Contenders = std::deque<Contender>;

// Warms up. Returns the steps of a turn.
int64_t steps_of_turn(Contenders& contenders, double turn_seconds) {
  double longest = 0.0;
  for (Contender& one : contenders) one.turn(kStepsBeforeTiming);
  for (Contender& one : contenders) longest = std::fmax(longest, one.turn(1));
  if (longest <= 0.0) return 1;
  return std::max<int64_t>(1, std::llround(std::ceil(std::min(turn_seconds / longest, 1e3))));
}

// ln(first / other) for each other contender: the median of kRoundsPerPair rounds. In a round each has one turn; they
// take turns at starting it. NaN if one of the two applied no step.
std::vector<double> log_ratios(Contenders& contenders, int64_t pair, int64_t steps) {
  std::vector<std::vector<double>> rounds(contenders.size() - 1);
  for (int64_t round = 0; round < kRoundsPerPair; ++round) {
    std::vector<double> seconds(contenders.size());
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      const size_t which = (static_cast<size_t>(pair * kRoundsPerPair + round) + turn) % contenders.size();
      seconds[which] = contenders[which].turn(steps);
    }
    for (size_t i = 0; i < rounds.size(); ++i) {
      const double ratio = std::log(seconds[0] / seconds[i + 1]);
      if (std::isfinite(ratio)) rounds[i].push_back(ratio);
    }
  }
  std::vector<double> medians;
  for (const auto& one : rounds) medians.push_back(quantile(one, 0.5));
  return medians;
}

std::vector<StepTimeDifference> compare(Contenders& contenders, const StepTimeOptions& options) {
  const int64_t steps = steps_of_turn(contenders, options.turn_seconds);
  const SequentialComparison start({.level = options.level,
                                    .first_look = options.first_look,
                                    .look_every = options.look_every,
                                    .max_pairs = options.most_pairs});
  std::vector<SequentialComparison> comparisons(contenders.size() - 1, start);
  const auto is_decided = [](const SequentialComparison& one) { return one.verdict().has_value(); };
  for (int64_t pair = 0; pair < options.most_pairs && !std::ranges::all_of(comparisons, is_decided); ++pair) {
    const std::vector<double> found = log_ratios(contenders, pair, steps);
    for (size_t i = 0; i < found.size(); ++i) {
      if (std::isfinite(found[i]) && !is_decided(comparisons[i]))
        comparisons[i].add(found[i], std::log1p(options.margin));
    }
  }
  std::vector<StepTimeDifference> differences;
  for (const SequentialComparison& one : comparisons) {
    StepTimeDifference& difference = differences.emplace_back();
    if (one.pairs() > 0) difference.log_ratio = one.difference();
    difference.verdict = one.verdict().value_or(ComparisonVerdict::kInconclusive);
  }
  return differences;
}

}  // namespace

std::optional<std::vector<StepTimeDifference>> compare_step_times(const Config& candidate,
                                                                  const std::vector<Config>& references,
                                                                  const StepTimeOptions& options,
                                                                  Communicator& communicator) {
  try {
    Contenders contenders;
    contenders.emplace_back(candidate, communicator);
    for (const Config& config : references) contenders.emplace_back(config, communicator);
    return compare(contenders, options);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (communicator.size() > 1 || error.code() != ExitCode::kMemory) throw;
    return std::nullopt;
  }
}

}  // namespace mantissa
