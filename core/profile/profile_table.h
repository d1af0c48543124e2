// The table of a profile: time, rates and per cent of the ceiling by phase and operation.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/profile/op_times.h"

namespace mantissa {

// What this device was measured to reach.
struct Ceilings {
  std::map<DType, double> gemm_flops;  // FLOP/s of products by the dtype of their operands; absent: not known
  double memory_bytes = 0.0;           // bytes/s read and written; 0: not known

  // The roofline (Williams, Waterman, Patterson 2009): the time that the products of this work would take at the peak
  // of its dtype, or its traffic at the memory's, whichever is longer. Nothing where the ceiling is not known, or not
  // this device's.
  std::optional<double> least_seconds(const KernelWork& work) const;
};

// The dtypes of products in these times: the GEMM peaks that the table asks for.
std::vector<DType> product_dtypes(const OpTimes& times);

// A line for each row of `times`, as means of a step, and the ceilings; begins with a line feed.
std::string to_text(const OpTimes& times, const Ceilings& ceilings);

}  // namespace mantissa
