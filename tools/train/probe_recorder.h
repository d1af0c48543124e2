// ProbeRecorder: the probes of a training run, the file that they fill, and what they cost.
#pragma once

#include <optional>
#include <string>

#include "tools/probe/run_probe.h"
#include "tools/train/session.h"
#include "tools/train/step_report.h"

namespace mantissa {

// What a RunProbe needs to know of a session: it must outlive the probe.
RunProbe::Parts parts_of(Session& session);
// Linear layers that a pass of the configuration's model has.
int linear_layers(const Config& config);

class ProbeRecorder {
 public:
  // `session` must outlive the object. Rank 0 opens the file; where it cannot, it says so, and the run goes on without.
  explicit ProbeRecorder(Session& session);

  RunProbe& probe() { return probe_; }
  // Of every step, and after it what was found in it, if it was looked at.
  void count(const StepReport& step);
  void record(const ProbedStep& step);
  // One line for the log: how many steps were looked at, what they took beyond the others, and where the file is.
  std::string summary() const;

 private:
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
