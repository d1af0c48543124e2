// Start: where a session's state comes from, and why it starts there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "amp/adaptive_precision.h"
#include "tools/train/checkpoint.h"
#include "tools/train/held_state.h"

namespace mantissa {

// Why a session continues the one before in another precision.
struct PrecisionSwitch {
  std::string cause{};                 // "precision.schedule[0]"
  std::vector<std::string> changes{};  // "precision.compute: fp32 -> bf16"
  // For precision.adaptive: the levels, else -1, and the bad signals.
  int from_level = -1, to_level = -1;
  std::vector<BadSignal> signals{};
};

// Why a run returns to an earlier step.
struct Rollback {
  std::string cause{};            // "3 spikes in a row, the last in step 41: …"
  int64_t from_step = 0;          // steps done
  int64_t next_batch = 0;         // after spikes (StopRulesConfig): the global batch with which training goes on
  int count = 0;                  // rollbacks after spikes in the run, this one included
  bool changes_precision = false;  // by precision.adaptive.rollback: the same batches on another level
};

struct Start {
  // The first weights (as find_initial_weights() returns them; empty: random ones), a checkpoint, or the state of the
  // session before.
  std::variant<std::string, ResumePoint, HeldState> from{};
  std::optional<PrecisionSwitch> by_switch{};
  std::optional<Rollback> rollback{};

  const ResumePoint* checkpoint() const { return std::get_if<ResumePoint>(&from); }
  // Whether the session is the first of this process.
  bool is_first() const { return !by_switch && !rollback; }
  int64_t steps_done() const {
    if (const auto* const held = std::get_if<HeldState>(&from)) return held->numbers().next_step;
    return checkpoint() != nullptr ? checkpoint()->step : 0;
  }
  // The steps whose records a file of the run keeps; nothing where a run begins, which leaves other runs' files aside.
  std::optional<int64_t> kept_steps() const {
    return steps_done() > 0 || rollback ? std::optional<int64_t>(steps_done()) : std::nullopt;
  }
};

}  // namespace mantissa
