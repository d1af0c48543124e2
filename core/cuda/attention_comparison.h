// How far two results of attention on the device are apart, by two libraries or in two runs.
#pragma once

#include <array>
#include <cstdint>

#include "core/backend/attention_extents.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

// Differences beyond this are no rounding. Each result has rounded probabilities or their gradients, the gradients of
// single heads, and its elements, each by u at most: 6 u of the norm between the two where terms have one sign. Five
// times that lets terms cancel; a wrong layout, scale or mask gives errors of order 1.
// u: 2^-9 in bf16, 2^-12 in fp16.
double attention_error_bound(DType dtype);  // bf16 or fp16
// Of lse, which is fp32 in both: bad scores show in it at once.
inline constexpr double kLseErrorBound = 0x1p-10;

// Uninitialised device memory in the form of a tensor, for the time of a comparison.
Tensor scratch_like(const Tensor& tensor);
// Uniform numbers in [-magnitude, magnitude), the same for every call with a seed, in the form of a 16-bit tensor.
// Waits for the stream.
Tensor made_up_like(const Tensor& tensor, uint64_t seed, float magnitude, CudaStream& stream);

// The norm of result - reference over that of the reference, for each part of the rows by itself, since queries, keys
// and values differ in magnitude: the largest of the three. +Inf if it is no number. Waits for the stream.
double relative_difference(const Tensor& result, const Tensor& reference, std::array<int64_t, 3> column_ends,
                           CudaStream& stream);
// The largest |result - reference| / (1 + |reference|). +Inf if it is no number. Waits for the stream.
double largest_difference(const Tensor& result, const Tensor& reference, CudaStream& stream);
bool same_bits(const Tensor& a, const Tensor& b, CudaStream& stream);

}  // namespace mantissa::cuda
