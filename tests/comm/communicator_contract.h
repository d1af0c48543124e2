// The contract of Communicator, checked from inside of one rank with GoogleTest's EXPECT. All ranks must call it alike.
// Used for ranks as threads and for ranks as processes.
#pragma once

#include "comm/communicator.h"

namespace mantissa::testing {

void check_communicator_contract(Communicator& communicator);

}  // namespace mantissa::testing
