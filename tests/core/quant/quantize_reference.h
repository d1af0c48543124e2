// The contract of QuantizeArgs written out element by element: scales and codes are searched for in lists of all values
// that a format has, and shared with the code under test is nothing but the contract's own fp32 products.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kernels/quantize/args.h"
#include "core/quant/tensor_format.h"

namespace mantissa::testing {

struct QuantizeReference {
  std::vector<float> values;  // what dst holds, before it is bf16
  // Of each element where blocks have scales: what it was multiplied by, and by what its code then is.
  std::vector<float> multipliers, inverse_scales;
  uint32_t amax = 0;  // as QuantizeRecord has them
  int64_t non_finite = 0;
};

// src: (rows, columns). scale: of the tensor, where the recipe has one.
QuantizeReference quantize_reference(const std::vector<float>& src, int64_t rows, int64_t columns, TensorFormat format,
                                     BlockAxis axis, float scale);

// The codes of values times a tensor's scale in e4m3 or e5m2, counted in the same lists; nothing for a NaN, whose code
// is any of the format's.
std::vector<std::optional<uint8_t>> code_reference(const std::vector<float>& src, Format format, float scale);

// The codes of values with these multipliers, one of each: likewise.
std::vector<std::optional<uint8_t>> code_reference(const std::vector<float>& src, Format format,
                                                   const std::vector<float>& multipliers);

// The element of the scales beside a matrix (rows, columns) of codes that belongs to each of its elements, counted in
// the order in which the layout stores them; `total`: all that it stores, padding included.
struct ScaleOrder {
  std::vector<int64_t> place;
  int64_t total = 0;
};
ScaleOrder scale_order_reference(BlockScaleLayout layout, int64_t rows, int64_t columns);

// The scale of a tensor of this amax by the recipe; 1 where it has none.
float reference_tensor_scale(TensorFormat format, float amax);

}  // namespace mantissa::testing
