// Ranges (core/profile/range.h) for NVIDIA's profilers.
#pragma once

namespace mantissa::cuda {

// Where a profiler has started the program, sends all ranges to it from now on: through NVTX, in a domain "mantissa",
// with the kinds of ranges as categories. Without one nothing is installed, and ranges cost nothing. Only the first
// call counts. What a CUDA graph repeats has no ranges of its own: the host does not pass there again.
void send_ranges_to_profiler();

}  // namespace mantissa::cuda
