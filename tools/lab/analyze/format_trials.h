// The cost of storing numbers in a format, by trying values on the device: range, errors by magnitude, lost gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/quant/tensor_format.h"

namespace mantissa {

enum class RoundedBy : uint8_t {
  kDevice,     // the kernels that training uses
  kEmulation,  // exactly, on the host: the device does not store this format
};

// One way of storing numbers.
struct Rounding {
  std::string name;                  // "fp16", "e4m3", "mxfp8"
  Format format = Format::kF32;      // of an element
  std::optional<Scaling> scaling{};  // none: values are stored unscaled
  RoundedBy by = RoundedBy::kEmulation;
  // Stores values together, without saturation, and reads them back.
  std::function<std::vector<float>(const std::vector<float>&)> round{};
};

// One for each format, and for each low-precision format with each recipe that takes its scales from the values
// themselves. `device`, its stream and the CPU backend `host` must outlive them.
std::vector<Rounding> make_roundings(Backend& device, Stream& stream, Backend& host);

struct FormatRange {
  double max = 0;           // largest number that comes back
  double min_normal = 0;    // smallest power of two stored with full precision
  double min_positive = 0;  // smallest positive number that comes back
  double epsilon = 0;       // from 1 to the next number
  double underflow_at = 0;  // largest magnitude that becomes 0; 0: no number does
  // Smallest magnitude that becomes Inf or NaN, or the maximum though another is nearer; none: no fp32 number does.
  std::optional<double> overflow_from{};

  double dynamic_range_db() const;  // 20 log10(max / min_positive)
};

// Requires a rounding without scales.
FormatRange measure_range(const Rounding& rounding);

// How a measured range differs from the format's definition; empty if it does not.
std::string difference_from_definition(const FormatRange& range, Format format);

// Relative errors of fp64 values in one decade, uniformly distributed in the logarithm. Each is rounded to fp32 first.
struct ErrorRow {
  int decade = 0;                              // values from 10^decade to 10^(decade + 1)
  double mean = 0, p95 = 0, p99 = 0, max = 0;  // of |stored - value| / value; 1 where 0 is stored
  double zeros = 0;                            // share of values that become 0
  double overflows = 0;  // share beyond the format's numbers (see FormatRange::overflow_from), which errors leave out
};
constexpr int kFirstErrorDecade = -8, kLastErrorDecade = 1;  // 1e-8 ... 100

std::vector<ErrorRow> measure_errors(const Rounding& rounding, int64_t samples);

// Losses of normally distributed gradients.
struct UnderflowRow {
  int decade = 0;         // standard deviation 10^decade
  double underflow = 0;   // share that becomes 0; no gradient is 0 before
  double subnormal = 0;   // share stored below the format's smallest normal number, 0 included
  double loss_scale = 1;  // recommended_scale(), or 1 if nothing underflows without a scale
  double scaled_underflow = 0, scaled_overflow = 0;  // at that scale
};
constexpr int kFirstGradientDecade = -10, kLastGradientDecade = -1;  // 1e-10 ... 0.1

// Requires a rounding without scales.
std::vector<UnderflowRow> measure_underflow(const Rounding& rounding, int64_t samples);

// 2^floor(log2(max / (headroom * amax))): the largest power of two that leaves the largest gradient a factor of
// `headroom` below the format's maximum.
inline constexpr double kHeadroom = 2.0;
double recommended_scale(double format_max, double amax);

}  // namespace mantissa
