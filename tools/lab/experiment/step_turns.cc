#include "tools/lab/experiment/step_turns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "comm/communicator.h"
#include "core/base/error.h"
#include "tools/config/precision_phases.h"
#include "tools/train/statistics.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kWarmUpSteps = 3;  // they take memory, make kernels, and capture graphs

// Of steps alone.
Config without_surroundings(const Config& given) {
  Config config = in_phase(given, 0);
  config.probe.enabled = false;
  config.profile = false;
  return config;
}

double slowest(double seconds, Communicator& communicator) {
  return std::ranges::max(all_gather_records(communicator, seconds));
}

class Contender {
 public:
  Contender(const Config& config, Communicator& communicator)
      : config_(without_surroundings(config)),
        communicator_(communicator),
        session_(config_, communicator),
        step_(session_) {}

  // Seconds a step on the slowest rank, of those of `steps` that were applied; NaN if none was.
  double turn(int64_t steps) {
    double seconds = 0.0;
    int64_t applied = 0;
    const auto take = [&](const std::vector<StepReport>& reports) {
      for (const StepReport& report : reports) {
        if (!report.applied) continue;  // it may have been run again to find out why
        seconds += report.seconds;
        ++applied;
      }
    };
    for (int64_t i = 0; i < steps; ++i) take(step_.run());
    take(step_.finish());
    // Whether steps are applied is the same on all ranks.
    return applied == 0 ? kNan : slowest(seconds, communicator_) / static_cast<double>(applied);
  }

 private:
  const Config config_;
  Communicator& communicator_;
  Session session_;
  TrainStep step_;
};

// The candidate and the references, in this order.
class Turns {
 public:
  Turns(const Config& candidate, const std::vector<Config>& references, double turn_seconds,
        Communicator& communicator) {
    contenders_.push_back(std::make_unique<Contender>(candidate, communicator));
    for (const Config& config : references) contenders_.push_back(std::make_unique<Contender>(config, communicator));
    double longest = 0.0;
    for (const auto& one : contenders_) one->turn(kWarmUpSteps);
    for (const auto& one : contenders_) longest = std::fmax(longest, one->turn(1));
    if (longest > 0.0) steps_ = std::max<int64_t>(1, std::llround(std::ceil(std::min(turn_seconds / longest, 1e3))));
  }

  // ln(candidate / reference) for each reference, of one turn each; NaN where one of the two applied no step. Every
  // contender begins a round as often as the others.
  std::vector<double> log_ratios() {
    std::vector<double> seconds(contenders_.size());
    for (size_t turn = 0; turn < contenders_.size(); ++turn) {
      const size_t which = (rounds_ + turn) % contenders_.size();
      seconds[which] = contenders_[which]->turn(steps_);
    }
    ++rounds_;
    std::vector<double> ratios;
    for (size_t i = 1; i < seconds.size(); ++i) ratios.push_back(std::log(seconds[0] / seconds[i]));
    return ratios;
  }

  // The median of kRoundsPerPair rounds.
  std::vector<double> pair() {
    std::vector<std::vector<double>> rounds(contenders_.size() - 1);
    for (int64_t round = 0; round < kRoundsPerPair; ++round) {
      const std::vector<double> found = log_ratios();
      for (size_t i = 0; i < found.size(); ++i) {
        if (std::isfinite(found[i])) rounds[i].push_back(found[i]);
      }
    }
    std::vector<double> medians;
    for (const auto& one : rounds) medians.push_back(one.empty() ? kNan : quantile(one, 0.5));
    return medians;
  }

 private:
  std::vector<std::unique_ptr<Contender>> contenders_;
  int64_t steps_ = 1;
  size_t rounds_ = 0;
};

std::vector<StepTimeDifference> compare(Turns& turns, size_t references, const StepTimeOptions& options) {
  std::vector<SequentialComparison> comparisons(references, SequentialComparison({.margin = std::log1p(options.margin),
                                                                                  .level = options.level,
                                                                                  .first_look = options.first_look,
                                                                                  .look_every = options.look_every,
                                                                                  .max_pairs = options.most_pairs}));
  const auto is_decided = [](const SequentialComparison& one) { return one.verdict().has_value(); };
  for (int64_t pair = 0; pair < options.most_pairs; ++pair) {
    if (std::all_of(comparisons.begin(), comparisons.end(), is_decided)) break;
    const std::vector<double> found = turns.pair();
    for (size_t i = 0; i < found.size(); ++i) {
      if (std::isfinite(found[i]) && !is_decided(comparisons[i])) comparisons[i].add(0.0, found[i]);
    }
  }
  std::vector<StepTimeDifference> differences(references);
  for (size_t i = 0; i < references; ++i) {
    if (comparisons[i].pairs() > 0) differences[i].log_ratio = comparisons[i].difference();
    differences[i].verdict = comparisons[i].verdict().value_or(ComparisonVerdict::kInconclusive);
  }
  return differences;
}

}  // namespace

std::optional<std::vector<StepTimeDifference>> compare_step_times(const Config& candidate,
                                                                  const std::vector<Config>& references,
                                                                  const StepTimeOptions& options,
                                                                  Communicator& communicator) {
  try {
    Turns turns(candidate, references, options.turn_seconds, communicator);
    return compare(turns, references.size(), options);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (communicator.size() > 1 || error.code() != ExitCode::kConfig) throw;
    return std::nullopt;
  }
}

}  // namespace mantissa
