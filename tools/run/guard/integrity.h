// IntegrityGuard: when a training looks for silent data corruption (configuration section `integrity`), and what
// follows from a finding. Every rank comes to the same decision.
//
//   Gradients on the wire, working weights: working weights are computed again from the masters, and the passes of the
//     step run again, before anything is updated: a transient fault leaves no trace. A second time in a row is a stop.
//   Masters, moments: they cannot be computed again. A stop.
//   Gradients of passes that ran twice: a third pass shows whose result was right. If all differ, a stop.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/corruption_check.h"
#include "core/base/error.h"
#include "tools/config/config.h"

namespace mantissa {

// The state is corrupt and must not be saved.
class CorruptionError : public FaultError {
 public:
  using FaultError::FaultError;
};

class IntegrityGuard {
 public:
  // Both must outlive the object.
  IntegrityGuard(const IntegrityConfig& config, ShardedState& state);

  // Whether the host must look at this step (from 0) on its own: no other step is under way then.
  bool is_due(int64_t step) const;
  // After the passes of a step for which is_due(), before its update. run_again() runs them again. Collective; blocks.
  void after_passes(int64_t step, const std::function<void()>& run_again);
  // After the step's update. Collective; blocks.
  void after_step(int64_t step);
  // Examines the state after so many steps, before it is saved or handed on. Collective; blocks.
  void at_rest(int64_t steps);

 private:
  bool checks(int64_t step) const { return check_ && (step + 1) % config_.interval == 0; }
  bool replays(int64_t step) const {
    return check_ && config_.replay_interval > 0 && (step + 1) % config_.replay_interval == 0;
  }
  bool checks_wire() const { return config_.wire && state_.communicator.size() > 1; }
  std::vector<Corruption> examine(int64_t step);
  void replay(int64_t step, const std::function<void()>& run_again);
  // One line about findings. Collective.
  std::string describe(const std::vector<Corruption>& findings) const;
  void warn(const std::string& text) const;
  void recompute_weights();
  // CorruptionError, or a warning if the configuration says so.
  void stop(int64_t steps, const std::vector<Corruption>& findings, const std::string& more);

  const IntegrityConfig& config_;
  ShardedState& state_;
  std::optional<CorruptionCheck> check_;  // nothing without digests
};

}  // namespace mantissa
