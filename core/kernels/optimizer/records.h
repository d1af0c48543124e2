// Records that an update reads and leaves on the device, and the names of its roundings. Plain data.
#pragma once

#include <cstdint>

#include "core/kernels/digest/digest.h"

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

// Digests of the tensors of an AdamW call, to find corruption of optimizer state: an update must read the state that
// the last update wrote. A plain record on the device; zeros are valid and check nothing.
struct StateDigests {
  enum Part : int32_t { kMaster, kWeight, kCompensation, kM, kV, kMAbsmax, kVAbsmax, kParts };

  Digest written[kParts];             // by the last update
  Digest read[kParts], next[kParts];  // read and written by updates since settle()
  uint32_t checked = 0;               // bit p: part p is state; a weight beside its master is only written
  // The first update with a mismatch in a checked part; 0: no mismatch.
  uint32_t bad_update = 0;
  int32_t bad_part = 0, padding = 0;
  Digest bad_expected{}, bad_found{};

  constexpr bool checks(int part) const { return (checked >> part & 1u) != 0; }
  // After update number `update`. Corrupted state is reported once: the update has made new state of it.
  constexpr void settle(uint32_t update) {
    for (int part = 0; part < kParts; ++part) {
      if (checks(part) && read[part] != written[part] && bad_update == 0) {
        bad_update = update;
        bad_part = part;
        bad_expected = written[part];
        bad_found = read[part];
      }
      written[part] = next[part];
      read[part] = next[part] = {};
    }
  }
};

// The largest magnitude of optimizer state: bf16's, so that every form of state can hold it.
inline constexpr float kLargestState = 0x1.fep127f;
constexpr bool is_state_fault(float value) { return !(value >= -kLargestState && value <= kLargestState); }

}  // namespace mantissa
