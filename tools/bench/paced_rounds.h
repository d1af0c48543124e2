// Rounds on demand, so that tools/bench/peers can let several programs take turns.
#pragma once

#include "comm/communicator.h"

namespace mantissa {

// Prints "ready: yes" and waits for a line on standard input: true for "round", false for "end" or the end of the
// input; ConfigError for any other. Collective: rank 0 reads and informs the others. These may spin while they wait, as
// MPI does; stop the processes (SIGSTOP) to free the cores.
bool wait_for_round(Communicator& communicator);

}  // namespace mantissa
