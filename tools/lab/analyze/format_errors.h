// What storing costs: relative errors of values by size, and what becomes of gradients that are small.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lab/analyze/rounding.h"

namespace mantissa {

// Of the values of one decade, uniformly distributed in the logarithm.
struct ErrorRow {
  int decade = 0;                              // values from 10^decade to 10^(decade + 1)
  double mean = 0, p95 = 0, p99 = 0, max = 0;  // of |stored - value| / value; 1 where 0 is stored
  double zeros = 0;                            // share of values that become 0
  double overflows = 0;                        // share that becomes Inf or NaN; these have no part in the errors
};
constexpr int kFirstErrorDecade = -8, kLastErrorDecade = 1;  // 1e-8 ... 100

std::vector<ErrorRow> measure_errors(const Rounding& rounding, int64_t samples);

// Of normally distributed gradients.
struct UnderflowRow {
  int decade = 0;         // standard deviation 10^decade
  double underflow = 0;   // share of values, none of them 0, that become 0
  double subnormal = 0;   // share that becomes less than the format's smallest normal number, 0 included
  double loss_scale = 1;  // recommended: see recommended_scale()
  double scaled_underflow = 0, scaled_overflow = 0;  // with it
};
constexpr int kFirstGradientDecade = -10, kLastGradientDecade = -1;  // 1e-10 ... 0.1

// For a rounding without scales.
std::vector<UnderflowRow> measure_underflow(const Rounding& rounding, int64_t samples);

// 2^floor(log2(max / (headroom * amax))), the largest power of two that leaves the largest of these gradients a factor
// of `headroom` below the format's maximum; 1 where nothing underflows without one.
inline constexpr double kHeadroom = 2.0;
double recommended_scale(double format_max, double amax);

}  // namespace mantissa
