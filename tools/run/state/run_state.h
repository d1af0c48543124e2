// The state of a run beside weights, moments and the scales of delayed scaling. Checkpoints hold it as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amp/adaptive_precision.h"
#include "amp/grad_scaler.h"
#include "core/io/checkpoint_store.h"
#include "tools/config/config.h"
#include "tools/run/guard/outliers.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {

// The checkpoint that a rollback (Rollback) returns to. Only saves at checkpoint.interval count. For
// precision.adaptive.rollback, no signal may have been uneasy since the previous save or when last measured. The
// checkpoint of another run that this run began with counts too: an early stop must not change where a run returns to.
struct RollbackPoint {
  int64_t step = 0;
  std::string folder{};  // of another run; empty: of this run
};

// State that lives across the sessions of a run.
struct RunState {
  explicit RunState(const Config& run, int64_t steps_done = 0);

  RunStatistics statistics{};
  int faults_in_a_row = 0;
  int skips_in_a_row = 0;  // steps that were not applied, for whatever reason
  int spikes_in_a_row = 0;
  int rollbacks = 0;  // see StopRulesConfig
  // The last checkpoint from whose state a clean step has started; -1: none is known. An entry of the manifest of its
  // own, since it depends on when checkpoints were saved, as nothing else here does.
  int64_t proven_step = -1;
  std::optional<RollbackPoint> rollback_point{};  // likewise an entry of its own
  PrecisionFallback fallback;
  std::optional<AdaptivePrecision> adaptive{};  // where the run's precision adapts
  std::optional<double> first_validation_loss{};
  std::optional<CheckpointFile>
      base{};  // the file of frozen weights (tools/model/runtime/open_model.h); for manifests, not read from them
};

nlohmann::json to_json(const RunState& state);
// The state after `steps_done` steps from a manifest's "run" entry. Parts that the run did not have yet may be missing:
// they begin there. DamagedEntry (run_folder.h).
RunState run_state_from(const Config& run, int64_t steps_done, const nlohmann::json& saved);
void to_json(nlohmann::json& j, const RollbackPoint& point);
void from_json(const nlohmann::json& j, RollbackPoint& point);
// For a record of the metrics.
void to_json(nlohmann::json& j, const BadSignal& bad);

// The phase of a run (tools/config/precision_phases.h) after `steps_done` steps.
int phase_of(const Config& run, int64_t steps_done, const RunState& state);
// The configuration of that phase, for the state in a manifest's "run" entry.
Config config_of(const Config& run, int64_t steps_done, const nlohmann::json& saved);

// Numbers handed from a session to the next; the same on all ranks.
struct TrainingState {
  int64_t next_step = 0;      // steps done
  int64_t applied_steps = 0;  // not skipped: for ShardedOptimizer::end_load()
  GradScaler::State scaler;
  int gradient_prescale_log2 = 0;  // see comm/comm_options.h
  std::vector<double> clip_norms;
  std::vector<SpikeDetector::Sample> spike_window{};
  int64_t skipped_batches = 0;  // see session.h

  // Gradients of activations are those of the global mean times this.
  double gradient_factor() const;
};

// Entries of a checkpoint's manifest. The second also reads the manifest's "ranks" and "config"; it throws the JSON
// library's exceptions for a missing entry or a wrong type, and DamagedEntry.
nlohmann::json to_json(const TrainingState& state);
TrainingState training_state_from(const nlohmann::json& manifest);

}  // namespace mantissa
