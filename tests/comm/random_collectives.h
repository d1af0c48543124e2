// A random sequence of collectives, the same on all ranks, on several streams, with Works that are tested and waited
// for at moments that each rank draws for itself.
#pragma once

#include <cstdint>

#include "tests/comm/communicator_contract.h"

namespace mantissa::testing {

enum class AbandonedWorks : uint8_t { kNone, kSome };

struct RandomCollectives {
  uint64_t seed = 1;
  int count = 40;
  int streams = 3;
  AbandonedWorks abandoned = AbandonedWorks::kNone;
};

// Checks every result after its Work is done, by work that is queued on the collective's stream or on one that waits
// for it.
void run_random_collectives(Communicator& communicator, TensorPlace& place, const RandomCollectives& options);

}  // namespace mantissa::testing
