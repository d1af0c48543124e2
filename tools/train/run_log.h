// RunLog: what rank 0 writes about a run: log lines for people, and RunRecords for programs.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "tools/model/runtime/loaded_model.h"
#include "tools/run/guard/black_box.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/metrics/metric_table.h"
#include "tools/run/metrics/metrics_file.h"
#include "tools/train/trainer.h"

namespace mantissa {

class RunLog final : public TrainObserver {
 public:
  // `heartbeat`: of rank 0. Box and heartbeat must outlive the object. Collective.
  RunLog(Session& session, const Start& start, const BlackBox& box, Heartbeat* heartbeat);

  void after_step(Trainer& trainer, const StepReport& step) override;
  void after_validation(Trainer& trainer, double loss) override;
  bool pauses_after(int64_t steps) const override { return is_due(config_.train.sample_interval, steps); }
  void at_pause(Trainer& trainer) override { sample(trainer.session()); }
  void at_end(Trainer& trainer, Ending ending) override;
  void before_leave(Trainer& trainer) override {
    if (trainer.is_leader()) record_phases(trainer.session());
  }

  // Logs a result of train.evaluations: `text` for people, `figures` for programs.
  void evaluated(const Session& session, const std::string& name, const std::string& text,
                 const nlohmann::json& figures);
  // Records that a checkpoint was saved.
  void saved(const Session& session);
  // The last state could not be saved: no commands are told that would take it.
  void unsaved() { is_unsaved_ = true; }

 private:
  void update_figures(const StepFigures& figures);
  void log_spike(const StepReport& step, int spikes_before) const;
  void begin(const Session& session, const Start& start);
  void log_switch(const Session& session, const PrecisionSwitch& by_switch);
  void log_rollback(const Session& session, const Rollback& rollback);
  void sample(Session& session);
  // Tells the hash of the trained weights. Collective.
  void hash(const Session& session);
  void summarise(Trainer& trainer);
  std::string record_memory(const Session& session);
  // Records the time by phase since the last such record.
  void record_phases(const Session& session);

  const Config& config_;
  const BlackBox& box_;
  SpeedContext speed_;
  PeakWatch peak_watch_{};
  std::optional<RunRecords> records_;  // rank 0
  std::unique_ptr<TextCodec> codec_;   // of samples, once there is one
  Heartbeat* const heartbeat_;         // rank 0
  std::optional<double> last_validation_loss_;
  int64_t steps_ = 0;  // of this session
  bool is_unsaved_ = false;

  // The phases in which a run's time is told. "wait": the host waits for the device. Waits for other ranks are in none.
  static constexpr std::array<std::string_view, 13> kPhases = {
      "data",     "forward", "backward",   "reduce",    "decide",    "update", "step",
      "evaluate", "sample",  "checkpoint", "integrity", "calibrate", "wait"};
  std::array<double, kPhases.size()> recorded_seconds_{};
  std::chrono::steady_clock::time_point recorded_at_ = std::chrono::steady_clock::now();
};

}  // namespace mantissa
