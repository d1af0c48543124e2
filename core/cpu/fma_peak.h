// What the cores' arithmetic units can do at most: multiply-adds on registers, without memory.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

struct FmaPeak {
  double flops = 0.0;            // FLOP/s of all threads together; a multiply-add is two
  const char* instruction = "";  // that reached it
};

// Of `threads` threads that compute at the same time, with the widest vector instructions of this processor: for
// bf16 its dot product too, where there is one, if that is faster than fp32. fp16 has the peak of fp32, to which its
// operands are widened. Matrix units (AMX) are not counted. The best of many bursts of some 1 ms, so that what others
// on the machine take does not count either. Takes 0.1 s, twice that for bf16. CHECK: a floating dtype, threads > 0.
FmaPeak measure_fma_peak(DType dtype, int threads);

}  // namespace mantissa::cpu
