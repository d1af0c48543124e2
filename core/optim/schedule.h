// Learning-rate schedules. The rate is a pure function of the number of applied steps, so skipped steps do not advance
// it and a resumed run continues it. With t applied steps, W warm-up steps and T total steps:
//   t < W:   peak * (t + 1) / W                 linear warm-up; reaches the peak at its last step
//   t >= T:  the final rate (constant: the peak)
// and in between, with x = (t - W) / (T - W):
//   constant                peak
//   linear                  peak + (final - peak) * x
//   cosine                  final + (peak - final) * (1 + cos(pi x)) / 2      Loshchilov & Hutter 2017, one cycle
//   warmup-stable-decay     peak until T - D, then linear to the final rate   Hu et al. 2024, linear cool-down over D
//   steps
#pragma once

#include <cstdint>

namespace mantissa {

enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine, kWarmupStableDecay };

// The terms of the formulas above: peak and final rate, W, T and D.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak = 3e-4;
  double final_rate = 0.0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  int64_t decay_steps = 0;  // wsd only
};

// ConfigError naming the value out of range or the impossible combination.
void validate(const ScheduleOptions& options);

// The rate of the next update after so many applied updates.
double learning_rate(const ScheduleOptions& options, int64_t applied_steps);

}  // namespace mantissa
