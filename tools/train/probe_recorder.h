// ProbeRecorder: the probes of a training run, the file that they fill, and what they cost.
#pragma once

#include <optional>
#include <string>

#include "tools/probe/run_probe.h"
#include "tools/train/trainer.h"

namespace mantissa {

// The probe of a session, which must outlive it.
RunProbe make_probe(Session& session);

class ProbeRecorder final : public TrainObserver {
 public:
  // Rank 0 opens `path`, unless it is empty; if it cannot, it warns and the run continues without the file. `session`
  // must outlive the object.
  ProbeRecorder(Session& session, const std::string& path);

  RunProbe& probe() { return probe_; }
  void after_step(Trainer& trainer, const StepReport& step, const ProbedStep* probed) override;
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
  std::optional<ProbeLog> log_;
  std::string path_;
  Seconds probed_, others_;
  bool has_warmed_up_ = false;
};

}  // namespace mantissa
