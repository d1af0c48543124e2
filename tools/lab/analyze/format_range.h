// The range of a format as a rounding shows it, found by trying values: what a device does, not what a table says.
#pragma once

#include <optional>
#include <string>

#include "tools/lab/analyze/rounding.h"

namespace mantissa {

struct FormatRange {
  double max = 0;                         // the largest number that comes back
  double min_normal = 0;                  // the smallest power of two that is stored with full precision
  double min_positive = 0;                // the smallest number that comes back and is not 0
  double epsilon = 0;                     // from 1 to the next number
  double underflow_at = 0;                // the largest magnitude that becomes 0; 0: none does
  std::optional<double> overflow_from{};  // the smallest that becomes Inf or NaN, or the maximum although another
                                          // number would be nearer; nothing: none of fp32
  // 20 log10(max / min_positive).
  double dynamic_range_db() const;
};

// Of a rounding without scales.
FormatRange measure_range(const Rounding& rounding);

// What differs from the format's definition, and what it should be; empty if nothing.
std::string difference_from_definition(const FormatRange& range, Format format);

}  // namespace mantissa
