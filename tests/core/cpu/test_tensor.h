// Tensors for kernel tests. A tensor ends at a page that may not be touched, so that one element read or written beyond
// it crashes the test; it starts at an odd offset of its storage, behind guard bytes that are checked when it is
// released.
#pragma once

#include <vector>

#include "core/tensor/tensor.h"

namespace mantissa::cpu {

// Rounds the values to the dtype.
Tensor make_tensor(DType dtype, Shape shape, const std::vector<double>& values);
// Every element NaN (i32, u8: all bits set): what a kernel does not write shows.
Tensor make_unwritten(DType dtype, Shape shape);
Tensor make_indices(const std::vector<int32_t>& values);

// The stored values, exactly.
std::vector<double> values_of(const Tensor& tensor);
std::vector<std::byte> bytes_of(const Tensor& tensor);

}  // namespace mantissa::cpu
