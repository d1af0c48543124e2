// A plain record on the device.
#pragma once

#include <cstdint>

#include "core/kernels/digest/digest.h"

namespace mantissa {

// Digests of the tensors of an AdamW call, to find corruption of optimizer state: an update must read the state that
// the last update wrote. Zeros are valid and check nothing.
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

}  // namespace mantissa
