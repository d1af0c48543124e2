// The difference of two attention results on the device, by two libraries or in two runs, and operands for both.
#pragma once

#include <array>
#include <cstdint>

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

// Larger differences are not due to rounding. Each result contains rounded probabilities or their gradients, gradients
// of single heads, and its own elements, each rounded by u at most. That is 6 u of the norm between two results if
// terms have one sign. Five times that allows for cancellation; a wrong layout, scale or mask gives errors of order 1.
// u: 2^-9 in bf16, 2^-12 in fp16.
double attention_error_bound(DType dtype);  // bf16 or fp16
// The bound for lse, which is fp32 in both. Each has an error, in units of 2^-24, of 32 (1 + scale * D * magnitude^2)
// for its largest score, and of 1 for each of the sum's terms. 32 covers D / 16 steps of a tensor core, which
// truncates, and the exponential and the logarithm. Our backward pass reads the other library's lse, so its error is a
// relative error of every probability. This is less than the rounding to bf16.
double lse_error_bound(const AttentionShape& shape, double operand_magnitude);

// Uninitialised device memory in the form of a tensor, for a comparison on `stream`.
Tensor scratch_like(const Tensor& tensor, CudaStream& stream);
// Uniform numbers in [-magnitude, magnitude) in the form of a 16-bit tensor; the same in every call with a seed. Waits
// for the stream.
Tensor made_up_like(const Tensor& tensor, uint64_t seed, float magnitude, CudaStream& stream);

// `count` elements, `stride` apart.
struct ElementRow {
  int64_t first = 0, count = 1, stride = 1;
};
// Sets elements of a 16-bit tensor. Waits for the stream.
void set_elements(const Tensor& tensor, const ElementRow& elements, float value, CudaStream& stream);
// One element. Waits for the stream.
double element(const Tensor& tensor, int64_t index, CudaStream& stream);

// The norm of result - reference over that of the reference, for each part of the rows by itself, because queries, keys
// and values differ in magnitude. Returns the largest of the three, or +Inf if it is NaN. Waits for the stream.
double relative_difference(const Tensor& result, const Tensor& reference, std::array<int64_t, 3> column_ends,
                           CudaStream& stream);
// The largest |result - reference|, or +Inf if it is NaN. Waits for the stream.
double largest_difference(const Tensor& result, const Tensor& reference, CudaStream& stream);
// Whether an element of `result` is finite where that of `reference` is not. Waits for the stream.
bool has_numbers_instead(const Tensor& result, const Tensor& reference, CudaStream& stream);
// Waits for the stream.
bool same_bits(const Tensor& a, const Tensor& b, CudaStream& stream);

}  // namespace mantissa::cuda
