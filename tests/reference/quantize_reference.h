// The contract of QuantizeArgs, element by element. It finds scales and codes by search in lists of all values of a
// format. It shares only the contract's own fp32 products with the code under test.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kernels/quantize/args.h"
#include "core/quant/tensor_format.h"

namespace mantissa::testing {

struct QuantizeReference {
  std::vector<float> values;  // the values of dst before rounding to bf16
  // For each element if blocks have scales: the factor before rounding, and the factor that decodes its code.
  std::vector<float> multipliers, inverse_scales;
  uint32_t amax = 0;  // as in QuantizeRecord
  int64_t non_finite = 0;
};

// src: (rows, columns). scale: the tensor's, if the recipe has one.
QuantizeReference quantize_reference(const std::vector<float>& src, int64_t rows, int64_t columns, TensorFormat format,
                                     BlockAxis axis, float scale);

// The e4m3 or e5m2 codes of values times a tensor's scale, from the same lists; nullopt for a NaN, which may have any
// of the format's NaN codes.
std::vector<std::optional<uint8_t>> code_reference(const std::vector<float>& src, Format format, float scale);

// The codes of values, each with its own multiplier, in the same form.
std::vector<std::optional<uint8_t>> code_reference(const std::vector<float>& src, Format format,
                                                   const std::vector<float>& multipliers);

// For each element of a (rows, columns) matrix of codes: the index of its scale in the layout's storage order. `total`:
// the number of stored scales, padding included.
struct ScaleOrder {
  std::vector<int64_t> place;
  int64_t total = 0;
};
ScaleOrder scale_order_reference(BlockScaleLayout layout, int64_t rows, int64_t columns);

// The scale that the recipe gives a tensor with this amax; 1 if the recipe has none.
float reference_tensor_scale(TensorFormat format, float amax);

}  // namespace mantissa::testing
