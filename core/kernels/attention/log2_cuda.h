// For the attention kernels that take exponentials as powers of two, which the hardware has: exp(x) = 2^(x * kLog2E).
#pragma once

namespace mantissa::cuda {

constexpr float kLog2E = 1.4426950408889634f;  // log2(e)

}  // namespace mantissa::cuda
