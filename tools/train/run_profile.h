// Observers for measurements of a run: RunProfile for its times, as text and as files, ProbeRecorder for its rounding.
// Also the peaks of its devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/backend/registry.h"
#include "core/profile/op_times.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/probe/run_probe.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/trainer.h"

namespace mantissa {

class RunProfile final : public TrainObserver {
 public:
  // Writes no files if `folder` is empty; else profile_rank<N>.txt and trace_rank<N>.json, each atomically, and first
  // removes those of an earlier run. References must outlive the object.
  RunProfile(StepProfiler& profiler, ModelRuntime& runtime, Communicator& communicator, std::string folder);

  void after_step(Trainer&, const StepReport&) override { watch(); }
  void before_leave(Trainer& trainer) override;

  // After steps: writes the trace as soon as its steps are known, so a run that ends early leaves its trace.
  void watch() {
    if (profiler_.trace_complete()) write_trace();
  }
  // Measures the ceilings, for 0.4 s or more on all ranks at once, writes the files and returns this rank's table,
  // headed by the time of a step and its spread over ranks. Collective; outside of a step.
  std::string finish();

 private:
  Ceilings measure_ceilings(uint32_t dtypes);
  void write(const std::string& path, const std::string& text) const;
  std::string path(const char* what, const char* extension) const;
  void write_trace();

  StepProfiler& profiler_;
  ModelRuntime& runtime_;
  Communicator& communicator_;
  const std::string folder_;
  bool trace_written_ = false;
};

// ---- The peaks of a run's devices.

// Measures the peak of all ranks at once, in 0.2 to 0.7 s, unless train.measure_peak is false, and looks up the
// data sheets of their devices. Ranks that share a GPU have no data sheet: each would be promised all of it.
// Collective.
SpeedContext measure_speed_context(const Config& config, const DeviceChoice& device, ModelRuntime& runtime,
                                   Communicator& communicator);

// FLOP/s that the data sheet of the backend's device `index` promises for products in this precision; 0: nothing.
double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision);

// ---- The probes of a training run, their file and their cost.

class ProbeRecorder final : public TrainObserver {
 public:
  // Rank 0 opens `path`, unless it is empty; if it cannot, it warns and the run continues without the file. The
  // state must outlive the object. `steps`: see ProbeLog.
  ProbeRecorder(const Config& config, ShardedState& state, const std::string& path, std::optional<int64_t> steps);

  StepExaminer* examiner() override { return &examiner_; }
  void after_step(Trainer& trainer, const StepReport& step) override;
  // Logs how many steps were probed, what they took beyond the others, and where the file is.
  void before_leave(Trainer& trainer) override;

 private:
  void record(const ProbedStep& step);
  struct Seconds {
    int64_t steps = 0;
    double sum = 0.0;
    double mean() const { return steps == 0 ? 0.0 : sum / static_cast<double>(steps); }
  };

  RunProbe probe_;
  ProbeExaminer examiner_{probe_};
  std::optional<ProbeLog> log_;
  std::string path_;
  Seconds probed_, others_;
  bool has_warmed_up_ = false;
};

}  // namespace mantissa
