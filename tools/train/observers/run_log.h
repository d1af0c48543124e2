// RunLog: what rank 0 writes about a run: a log line for people and a JSON line in metrics.jsonl for programs.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/guard/heartbeat.h"
#include "tools/train/trainer.h"

namespace mantissa {

struct SessionStart;

// "step 5/100 | loss 7.6201, norm 2.100, lr 3.0e-04, scale 65536 | 12.3 ms, 90.0k tok/s, MFU 45% | 14:02, ends 14:05".
// A loss scale of 1 is left out. MFU is of the GEMM peak, or else of the data sheet, if one is known. At most 120
// columns: a line that would be longer leaves out the time of the step, then MFU.
std::string step_line(const StepReport& report, int64_t steps, const SpeedContext& speed, const std::string& time);
// Figures that are not finite are null, as are rates that are not known.
nlohmann::json step_json(const StepReport& report, const SpeedContext& speed, size_t memory_bytes);

// Appends JSON lines to a file. A file that cannot be written is reported once and does not stop the run. No link is
// followed.
class MetricsFile {
 public:
  // Continues the file of a run that has done `steps`, also 0 after a rollback: records of later steps are removed.
  // Nothing: a run begins, and the file of another one is kept as PATH.previous.
  MetricsFile(const std::string& path, std::optional<int64_t> steps);
  void write(const nlohmann::json& record);

 private:
  std::string path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_{nullptr, &std::fclose};
  bool has_warned_ = false;
};

class RunLog final : public TrainObserver {
 public:
  // `heartbeat`: of rank 0; it must outlive the object. Collective.
  RunLog(Session& session, const SessionStart& start, Heartbeat* heartbeat);

  void after_step(Trainer& trainer, const StepReport& step, const ProbedStep* probed) override;
  void after_validation(Trainer& trainer, double loss) override;
  bool pauses_after(int64_t steps) const override { return is_due(config_.train.sample_interval, steps); }
  void at_pause(Trainer& trainer) override { sample(trainer.session()); }
  void at_end(Trainer& trainer, Ending ending) override;

  // Tells why this session returns to a checkpoint.
  void rolled_back(const Session& session, const Rollback& rollback);
  // Records that a checkpoint was saved.
  void saved(const Session& session);
  // The last state could not be saved: no commands are told that would take it.
  void unsaved() { is_unsaved_ = true; }

 private:
  void tell(const StepReport& step, size_t memory_bytes);
  void tell_spike(const StepReport& step, int spikes_before) const;
  void begin(const Session& session, const SessionStart& start);
  void sample(Session& session);
  void summarise(Trainer& trainer);
  std::string tell_memory(const Session& session);

  const Config& config_;
  SpeedContext speed_;
  PeakWatch peak_watch_{};
  std::optional<MetricsFile> metrics_;  // rank 0
  Heartbeat* const heartbeat_;          // rank 0
  std::optional<double> last_validation_loss_;
  int64_t steps_ = 0;  // of this session
  bool is_unsaved_ = false;
};

}  // namespace mantissa
