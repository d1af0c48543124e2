#include "tools/train/probe_recorder.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

// Linear layers in a pass of the configuration's model.
int linear_layers(const Config& config) {
  const auto ops = ops_of(config);
  return static_cast<int>(
      std::count_if(ops.begin(), ops.end(), [](const PlacedOp& op) { return op.op == Op::kLinear; }));
}

}  // namespace

RunProbe make_probe(const Config& config, ShardedState& state, DType reference) {
  return RunProbe(config, linear_layers(config), state, reference);
}

ProbeRecorder::ProbeRecorder(const Config& config, ShardedState& state, const std::string& path,
                             std::optional<int64_t> steps)
    : probe_(make_probe(config, state)), path_(path) {
  if (state.communicator.rank() != 0 || path.empty()) return;
  try {
    log_.emplace(path_, steps);
  } catch (const std::exception& error) {
    log_warn("probes are not written: {}", error.what());
  }
}

void ProbeRecorder::after_step(Trainer&, const StepReport& step) {
  if (has_warmed_up_) {
    Seconds& seconds = probe_.due(step.step) ? probed_ : others_;
    ++seconds.steps;
    seconds.sum += step.seconds;
  }
  has_warmed_up_ = true;  // the first step of a process also takes memory, times products and reads files
  if (step.probed) record(*step.probed);
}

void ProbeRecorder::record(const ProbedStep& step) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    if (log_) log_->append(step);
  } catch (const std::exception& error) {
    log_warn("probes are no longer written: {}", error.what());
    log_.reset();
  }
  if (probed_.steps == 0) return;  // the first step of the process
  probed_.sum += step.seconds + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void ProbeRecorder::before_leave(Trainer& trainer) {
  if (!trainer.is_leader() || path_.empty()) return;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path_, error);
  std::string text = fmt::format("probes: {} ({:.1f} KiB), for `mantissa analyze probes`", path_,
                                 error ? 0.0 : static_cast<double>(bytes) / 1024.0);
  if (!log_) text = "probes: not written to the end, see above";
  if (probed_.steps > 0 && others_.steps > 0) {
    const double extra = probed_.mean() - others_.mean();
    text += fmt::format(
        "; a probed step took {:.1f} ms more than the {:.1f} ms of others, which is {:.1f} % of the run's time",
        extra * 1e3, others_.mean() * 1e3,
        100.0 * extra * static_cast<double>(probed_.steps) / (probed_.sum + others_.sum));
  }
  log_info("{}", wrapped(text));
}

}  // namespace mantissa
