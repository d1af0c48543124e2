// GradScaler: the loss scale and its five operations, scale, unscale, step, update and state.
//
//   backward(loss * scaler.scale());         // once for each micro-batch of the step: the same factor
//   const float unscale = scaler.unscale();  // once: the factor that turns the gradients back
//   if (scaler.step(outcome)) { ... }        // outcome, alike on every rank; true: apply the update
//   scaler.update();                         // the next step's scale, and what happened
//
// The scale acts on the backward pass only. Non-finite gradients under a finite loss are therefore overflow, which a
// lower scale cures, NaN included (Inf - Inf and 0 * Inf make NaN downstream). A non-finite loss is a fault that no
// scale cures: it leaves the scaler's state as it was, as a spike of finite numbers does. At the floor an overflow is a
// fault as well.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/kernels/reduction/records.h"

namespace mantissa {

enum class ScalerMode : uint8_t {
  kNone,     // scale 1, with the same finite check and skip (bf16, fp32)
  kStatic,   // init_scale forever
  kDynamic,  // grows after clean steps, backs off on overflow
};

enum class HysteresisRefill : uint8_t {
  kOnGrowth,     // when growth_interval clean steps are complete (Megatron, DeepSpeed)
  kOnCleanStep,  // on every clean step (DeepSpeed's consecutive_hysteresis)
};

// How an overflow counts when the scale cannot go lower. In modes kNone and kStatic it never can.
enum class FloorPolicy : uint8_t {
  kClamp,  // one more skipped step
  kFault,  // a fault, which the trainer counts
  kStop,   // a fault that ends the run at once if the scale is dynamic; else as kFault
  kLift,   // a fault; the trainer then gives the overflowing layer more precision
  kBf16,   // a fault; the trainer then replaces fp16 by bf16
};

// Settings of the loss scale.
struct ScalerConfig {
  ScalerMode mode = ScalerMode::kDynamic;
  float init_scale = 65536.0f;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // clean steps in a row before the scale grows
  int64_t growth_delay = 0;  // clean steps after the start or an overflow that do not count towards the first growth
  float min_scale = 1.0f;    // the floor; 0 for none
  float max_scale = std::numeric_limits<float>::max();  // the scale does not grow beyond it
  int hysteresis = 1;                                   // overflows until the scale backs off; 1: at the first
  HysteresisRefill refill = HysteresisRefill::kOnGrowth;
  FloorPolicy floor_policy = FloorPolicy::kFault;
};

// Throws ConfigError naming the first value that makes no sense.
void validate(const ScalerConfig& config);

// Configurations that reproduce the dynamic loss scalers of other systems state for state.
//
//                          init   interval  delay  hysteresis (refill)   floor
//   pytorch                2^16   2000      0      1                     none
//   megatron               2^32   1000      0      2 (on growth)         1, clamps
//   deepspeed              2^16   1000      1      2 (on growth)         1, the first overflow there ends the run
//   deepspeed_consecutive  2^16   1000      1      2 (on a clean step)   1, the same
//   deepspeed_0.17.0       2^16   1000      0      2 (on growth)         1, the same
//
// Since 0.17.1 DeepSpeed counts one more clean step before the first growth after an overflow. Read in
// torch/amp/grad_scaler.py and AmpKernels.cu; megatron/core/optimizer/grad_scaler.py;
// deepspeed/runtime/fp16/loss_scaler.py.
//
// Two differences are deliberate. Those systems see a non-finite loss as overflow of its gradients and lower the scale;
// here it is a fault. Megatron and DeepSpeed let the scale grow past the largest fp32 number; here growth stops before
// it, as in PyTorch.
std::vector<std::string_view> scaler_preset_names();
// Throws ConfigError with the list of names if the name is unknown.
ScalerConfig scaler_preset(std::string_view name);

enum class ScalerEvent : uint8_t {
  kUnchanged,
  kGrew,
  kGrowthCapped,  // due to grow, but the result would exceed max_scale
  kBackedOff,
  kHysteresisConsumed,  // overflow, skipped without backing off
  kHeldAtFloor,         // overflow at the floor, FloorPolicy::kClamp
  kAtFloorFault,        // overflow at the floor, any other FloorPolicy
  kLossFault,
  kSpike,  // skipped for another reason than the range of numbers: the scale stays
  kStateFault,
};

std::string_view name(ScalerMode mode);    // "none", "static", "dynamic"
std::string_view name(ScalerEvent event);  // for log lines: "backed off", ...
// Whether the event is a fault that lowering the scale cannot cure.
inline bool is_fault(ScalerEvent event) {
  return event == ScalerEvent::kAtFloorFault || event == ScalerEvent::kLossFault || event == ScalerEvent::kStateFault;
}
// Whether the event ends the run, however few faults came before it.
bool ends_run(ScalerEvent event, const ScalerConfig& config);

class GradScaler {
 public:
  // All that a checkpoint needs.
  struct State {
    ScalerMode mode = ScalerMode::kNone;
    float scale = 1.0f;
    int64_t clean_steps = 0;  // in a row, towards growth; negative during growth_delay
    int hysteresis_left = 1;  // the scale backs off at the hysteresis_left-th overflow from now
    bool operator==(const State&) const = default;
  };

  // Throws ConfigError if `config` makes no sense.
  explicit GradScaler(const ScalerConfig& config);

  // The operations below throw ContractError when called out of order.

  // The factor of this micro-batch's loss. The first call opens a window in which the scale stays fixed, up to
  // update().
  float scale();
  // Once in a window, after its last backward pass: float(1 / double(scale)), to multiply the gradients by.
  float unscale();
  // Once in a window, after unscale(): whether to apply the update. A fault of the loss or of the state needs no
  // unscale() before it.
  bool step(StepOutcome outcome);
  // Closes the window and adjusts the scale.
  ScalerEvent update();

  // The current scale, for log lines: does not open a window.
  float current_scale() const { return state_.scale; }
  const ScalerConfig& config() const { return config_; }

  // Between windows only, and so is load_state.
  State state() const;
  // Continues from a saved state, with values clamped to the ranges of this configuration. A static scale is
  // configuration, not state: it stays. Returns false, changing nothing, if the state is of another mode (a bf16 run
  // resumed as fp16): the caller reports it. CheckpointError if the state is damaged.
  [[nodiscard]] bool load_state(const State& state);

 private:
  enum class Phase : uint8_t { kIdle, kAccumulating, kUnscaled, kStepped };

  ScalerEvent on_clean_step();
  ScalerEvent on_overflow();

  ScalerConfig config_;
  State state_;
  Phase phase_ = Phase::kIdle;
  StepOutcome outcome_ = StepOutcome::kClean;
};

}  // namespace mantissa
