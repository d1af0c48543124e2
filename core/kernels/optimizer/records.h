// Records that an update reads and leaves on the device, and the names of its roundings. Plain data.
#pragma once

#include <cstdint>

namespace mantissa {

// Inputs of an update, on the device, so that a verdict on the device can suppress it without the host. Double for
// updates in fp64; others round each number to fp32 first.
struct UpdateControl {
  int32_t apply = 1;               // 0: leave everything untouched
  double gradient_multiplier = 1;  // unscaling and clipping in one factor
  double learning_rate = 0;
  double bias_correction1 = 1;  // 1 - beta1^t
  double bias_correction2 = 1;  // 1 - beta2^t
  uint32_t update = 0;          // t: the update's number, from 1; chooses the random words of stochastic rounding
};

// How an fp32 value is rounded to a 16-bit weight.
enum class WeightRounding : uint8_t {
  kNearest,     // ties to even
  kStochastic,  // up or down at random so that the mean is the value: core/tensor/half.h
};

// The largest magnitude of optimizer state: bf16's, so that every form of state can hold it.
inline constexpr float kLargestState = 0x1.fep127f;
constexpr bool is_state_fault(float value) { return !(value >= -kLargestState && value <= kLargestState); }

}  // namespace mantissa
