// The report of a step once it is done, its speed, and the statistics of all steps of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "amp/grad_scaler.h"
#include "comm/verdict_reduction.h"

namespace mantissa {

struct ProbedStep;

// The report of a step. The same on every rank, except for the time.
struct StepReport {
  int64_t step = 0;
  double loss = 0.0;       // mean over the targets of the global batch, nats; NaN without targets
  double grad_norm = 0.0;  // of the unscaled gradient of that mean, before clipping
  double clip_factor = 1.0;
  double learning_rate = 0.0;
  int64_t tokens = 0;       // targets
  float scale = 1.0f;       // used in this step
  float next_scale = 1.0f;  // after it
  ScalerEvent event = ScalerEvent::kUnchanged;
  bool applied = true;
  Verdict verdict;
  std::optional<Offender> offender;  // of non-finite gradients
  bool hunted = false;               // whether the op that made such gradients was looked for
  // After a non-finite state: describe_state_faults(). After a non-finite loss, or non-finite gradients whose source
  // was searched: the first op with a non-finite output, and its inputs. Nothing if every op's output was finite.
  std::optional<std::string> culprit;
  std::vector<std::string> overflowed_layers{};  // layers in the precision that overflowed
  // curvature_of() in amp/adaptive_precision.h; only if it was measured and the update leads downhill.
  std::optional<double> curvature{};
  // gradient_noise_of() in amp/adaptive_precision.h; only if it was measured.
  std::optional<double> gradient_noise{};
  // How far loss or norm is above the previous steps, if the difference makes it a spike (stop_rules).
  std::optional<std::string> spike{};
  std::shared_ptr<const ProbedStep> probed{};  // findings of the probe; rank 0 has the findings of all ranks
  double seconds = 0.0;

  // Whether the step was skipped because the global batch has no target.
  bool lacks_targets() const { return !applied && tokens == 0; }
  // Why the step was skipped, in one line; empty when it was applied.
  std::string skip_reason(const ParameterSet& parameters) const;
  // Advice to a user whose run ends with skipped steps like this one.
  std::string advice(const ScalerConfig& scaler) const;
};

// Why masters or moments end a run, and what to do. `fault`: describe_state_faults().
std::string state_fault_reason(const std::string& fault);
inline constexpr const char* kStateFaultAdvice =
    "this state was not saved: lower optimizer.lr or model.init_stddev, or give optimizer.clip, and start again";

// MFU, model FLOP utilisation (Chowdhery et al. 2022, "PaLM", appendix B): the model's FLOP over what the devices could
// have done in the same time. FLOP of recomputation, padding and the optimizer do not count. "Could have done" is
// either the peak measured at the start of the run, or the data sheet. The first is fair to a device that power or
// other users hold below its data sheet; the second compares with published numbers. The measured peak is for matrix
// products; on a CPU at least for multiply-adds on registers, their upper bound. PeakWatch raises it if it is exceeded.
struct SpeedContext {
  int64_t tokens_per_step = 0;   // positions of the global batch
  double flops_per_step = 0.0;   // see training_flops_per_token()
  double gemm_peak_flops = 0.0;  // FLOP/s in the compute dtype, measured, summed over ranks; 0: not known
  double datasheet_flops = 0.0;  // FLOP/s by data sheet, summed over ranks; 0: not known

  double tokens_per_second(double step_seconds) const { return static_cast<double>(tokens_per_step) / step_seconds; }
  // In [0, 1]; 0 if the peak is not known. A single step may seem faster than the peak, as the host sees it.
  double mfu_of_gemm_peak(double step_seconds) const { return mfu(gemm_peak_flops, step_seconds); }
  double mfu_of_datasheet(double step_seconds) const { return mfu(datasheet_flops, step_seconds); }
  double mfu(double peak_flops, double step_seconds) const {
    return peak_flops > 0.0 ? std::min(1.0, flops_per_step / step_seconds / peak_flops) : 0.0;
  }
  // "90000 tok/s | MFU 45.1% of the measured peak, 33.0% of data sheet"
  std::string to_text(double step_seconds) const;
};

// Raises a measured peak that steps exceed to the rate of the median of five steps.
class PeakWatch {
 public:
  // Whether this step raises speed.gemm_peak_flops.
  bool add(double step_seconds, SpeedContext& speed);

 private:
  static constexpr size_t kSteps = 5;
  std::deque<double> seconds_;
};

// Counts positive values in bins 1 % wide: quantiles are exact to 0.5 % of their value; minimum and maximum are exact.
struct LogHistogram {
  std::map<int32_t, int64_t> bins{};  // by floor(log(value) / log(1.01))
  int64_t count = 0;
  double min = 0.0, max = 0.0;

  // Values that are not finite or not above 0 count in the smallest bin.
  void add(double value);
  // q in [0, 1]; NaN without values.
  double quantile(double q) const;
};
void to_json(nlohmann::json& json, const LogHistogram& histogram);
void from_json(const nlohmann::json& json, LogHistogram& histogram);

// The q-quantile of a few values, by linear interpolation; NaN without values.
double quantile(std::vector<double> values, double q);

// Statistics of all steps of a run, in bounded memory however long it is: the block at its end.
struct RunStatistics {
  static constexpr size_t kRemembered = 10;  // newest skips and changes of the scale; the metrics file has all

  int64_t applied = 0, skipped = 0, scale_changes = 0;
  std::deque<std::string> newest_skips{};                 // "step 12: reason"
  std::deque<std::pair<int64_t, float>> newest_scales{};  // first step, scale
  LogHistogram grad_norms{};                              // of applied steps
  LogHistogram step_ms{};

  void add(const StepReport& report, const std::string& skip_reason);
  // Steps, skips with reasons, the loss scale, quantiles of gradient norm and step time, rates of the median step.
  std::string to_text(size_t peak_memory_bytes, const SpeedContext& speed) const;
};
// For checkpoints: all but the step times, which belong to a single start of the program.
void to_json(nlohmann::json& json, const RunStatistics& statistics);
void from_json(const nlohmann::json& json, RunStatistics& statistics);

}  // namespace mantissa
