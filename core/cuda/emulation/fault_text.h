// Faults for another process: a test starts a test program with a fault in its environment and checks that it fails.
//
//   MANTISSA_EMULATION_FAULT    one fault:
//       skip FILE:LINE          the wait at this place does not wait
//       block KERNEL            the kernel's last block does not run
//       shared BYTES KERNEL     the kernel's blocks get this much less shared memory
//       bound INDEX BY KERNEL   one of the kernel's integer arguments is off by BY
//     Anything else ends the process with kBadFaultExit, before main().
//   MANTISSA_EMULATION_REPORT   a file that is written at exit: a line for each place and kernel that a fault can have
//       wait FILE:LINE
//       kernel BOUNDS SHARED_BYTES KERNEL      BOUNDS: 17,4,1, the largest value of each, or "none"
#pragma once

#include <string>

#include "core/cuda/emulation/settings.h"

namespace mantissa::cuda::emulation {

constexpr int kBadFaultExit = 64;  // not the exit status of a test program that found a failure

// Throws std::invalid_argument if `text` is none of the above.
Faults parse_fault(const std::string& text);

// The fault in the environment, if any. Also arranges for the report.
Faults faults_from_environment();

}  // namespace mantissa::cuda::emulation
