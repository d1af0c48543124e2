// The four formats of the experiments, rounded by the program's own functions.
#pragma once

#include <cstdint>

#include "core/kernels/optimizer/args.h"
#include "core/quant/narrow_format.h"
#include "core/tensor/format.h"
#include "core/tensor/half.h"

namespace mantissa::testing {

inline constexpr Format kWeightFormats[] = {Format::kF16, Format::kBF16, Format::kE4M3, Format::kE5M2};

// word: 32 random bits; rounding to nearest uses none.
inline float round_weight(Format format, WeightRounding rounding, float value, uint32_t word) {
  if (rounding == WeightRounding::kNearest) return quantize(format, value, Saturation::kYes);
  if (format == Format::kBF16) return to_float(round_stochastically<BFloat16>(value, word));
  if (format == Format::kF16) return to_float(round_stochastically<Float16>(value, word));
  return round_stochastically_to(narrow_format(format), value, word);
}

// The spacing of the format's numbers in [1, 2).
inline double spacing(Format format) { return info(format).epsilon; }

}  // namespace mantissa::testing
