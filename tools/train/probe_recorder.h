// ProbeRecorder: the probes of a training run, the file that they fill, and what they cost.
#pragma once

#include <optional>
#include <string>

#include "tools/probe/run_probe.h"
#include "tools/train/trainer.h"

namespace mantissa {

// `config`: of the session that the state belongs to. `reference`: see ProductProbe. The state must outlive the probe.
RunProbe make_probe(const Config& config, ShardedState& state, DType reference = DType::kF32);

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
