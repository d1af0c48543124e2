// Peak arithmetic throughput of the cores: multiply-adds on registers, without memory access.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

struct FmaPeak {
  double flops = 0.0;            // FLOP/s of all threads together; a multiply-add is two
  const char* instruction = "";  // the instruction that reached it
};

// Peak of `threads` concurrent threads with this processor's widest vector instructions. For bf16 also tries the bf16
// dot product, if available, and returns the faster. fp16 has the peak of fp32, to which its operands are widened.
// Matrix units (AMX) are not counted. Takes the best of many bursts of about 1 ms, so that other load on the machine
// does not count. Runs for 0.1 s, twice that for bf16. ContractError unless dtype is floating and threads > 0.
FmaPeak measure_fma_peak(DType dtype, int threads);

}  // namespace mantissa::cpu
