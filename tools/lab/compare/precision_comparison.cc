#include "tools/lab/compare/precision_comparison.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "comm/communicator.h"
#include "core/backend/registry.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/train/device_choice.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

size_t baseline_of(const std::vector<PrecisionRuns>& precisions, const std::string& wanted) {
  const std::string name = wanted.empty() ? "fp32" : wanted;
  for (size_t index = 0; index < precisions.size(); ++index) {
    if (precisions[index].name == name) return index;
  }
  if (wanted.empty()) return 0;
  std::vector<std::string> names;
  for (const PrecisionRuns& one : precisions) names.push_back(one.name);
  throw ConfigError(
      fmt::format("--baseline: expected one of the precisions {}, got '{}'", fmt::join(names, ","), wanted));
}

std::string description(const Config& config, const Communicator& communicator) {
  const DeviceChoice choice = choose_device(config.device, communicator.local_rank());
  return create_backend(choice.backend, choice.index)->describe();
}

void announce(const std::string& name, uint64_t seed, const TrainingRecord& run) {
  if (!run.succeeded()) return log_warn("{} with seed {} failed: {}", name, seed, run.failure);
  log_info("{} with seed {}: final loss {:.4f} nats, {:.2f} ms a step, {:.0f} tokens/s", name, seed, run.final_loss(),
           1e3 * run.median_step_seconds(), run.tokens_per_second());
}

}  // namespace

size_t precision_in_turn(size_t seed, size_t turn, size_t count) { return (seed + turn) % count; }

PrecisionComparison compare_precisions(const ComparisonOptions& options, const Config& config,
                                       const std::vector<Candidate>& candidates, Communicator& communicator) {
  PrecisionComparison comparison{.options = options,
                                 .config = config,
                                 .ranks = communicator.size(),
                                 .device = description(config, communicator),
                                 .steps = Trainer::last_step(config),
                                 .seeds = {},
                                 .precisions = {}};
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    comparison.seeds.push_back(config.train.seed + static_cast<uint64_t>(seed));
  }
  std::vector<size_t> trained;  // those that are not refused
  for (const Candidate& candidate : candidates) {
    PrecisionRuns precision{.name = candidate.name, .config = candidate.config};
    try {
      require_trainable(candidate.config, communicator);
      trained.push_back(comparison.precisions.size());
    } catch (const ConfigError& error) {
      precision.refusal = error.what();
    }
    comparison.precisions.push_back(std::move(precision));
  }
  comparison.baseline = baseline_of(comparison.precisions, options.baseline);
  const PrecisionRuns& baseline = comparison.precisions[comparison.baseline];
  if (!baseline.refusal.empty()) {
    throw ConfigError(
        fmt::format("{}, which the others are compared with, cannot be trained: {}", baseline.name, baseline.refusal));
  }
  for (size_t seed = 0; seed < comparison.seeds.size(); ++seed) {
    for (size_t turn = 0; turn < trained.size(); ++turn) {
      PrecisionRuns& precision = comparison.precisions[trained[precision_in_turn(seed, turn, trained.size())]];
      precision.runs.push_back(run_training(with_seed(precision.config, comparison.seeds[seed]), communicator));
      precision.places.push_back(static_cast<int64_t>(turn));
      if (communicator.rank() == 0) announce(precision.name, comparison.seeds[seed], precision.runs.back());
    }
  }
  return comparison;
}

}  // namespace mantissa
