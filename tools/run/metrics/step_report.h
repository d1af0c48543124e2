// StepReport: what is known of a step once it is done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amp/grad_scaler.h"
#include "comm/verdict_reduction.h"

namespace mantissa {

struct ProbedStep;

// The report of a step. The same on every rank, except for the time.
struct StepReport {
  int64_t step = 0;
  double loss = 0.0;       // mean over the non-ignored tokens of the global batch, nats
  double grad_norm = 0.0;  // of the unscaled gradient of that mean, before clipping
  double clip_factor = 1.0;
  double learning_rate = 0.0;
  int64_t tokens = 0;       // non-ignored
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
  std::vector<std::string> overflowed_layers{};  // whose precision that had
  // curvature_of() in amp/adaptive_precision.h; only if it was measured and the update leads downhill.
  std::optional<double> curvature{};
  // gradient_noise_of() in amp/adaptive_precision.h; only if it was measured.
  std::optional<double> gradient_noise{};
  // How far loss or norm is above those of the steps before, if that makes it a spike (stop_rules).
  std::optional<std::string> spike{};
  std::shared_ptr<const ProbedStep> probed{};  // findings of the probe; rank 0 has those of all ranks
  double seconds = 0.0;

  // Why the step was skipped, in one line; empty when it was applied.
  std::string skip_reason(const ParameterSet& parameters) const;
  // Advice to a user whose run ends with skipped steps like this one.
  std::string advice(const ScalerConfig& scaler) const;
};

// Why masters or moments end a run, and what to do. `fault`: describe_state_faults().
std::string state_fault_reason(const std::string& fault);
inline constexpr const char* kStateFaultAdvice =
    "this state was not saved: lower optimizer.lr or model.init_stddev, or give optimizer.clip, and start again";

}  // namespace mantissa
