// Element types of tensors.
#pragma once

#include <optional>
#include <utility>

#include "core/base/check.h"
#include "core/tensor/format.h"
#include "core/tensor/half.h"

namespace mantissa {

// Element types that a Tensor can store. Formats that are only described (tf32) are in format.h. fp64 is for reference
// trainings on the CPU, in which every floating tensor is fp64 (core/kernels/fp64). e4m3 and e5m2 are the bytes of rows
// of codes with block scales (core/quant/coded_rows.h), which only few kernels take; they do not count as floating.
enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kU8, kF64, kE4M3, kE5M2 };

// Facts about a dtype.
int64_t size_bytes(DType dtype);
std::string_view name(DType dtype);  // "fp32", "bf16", "fp16", "i32", "u8", "fp64", "e4m3", "e5m2"
bool is_floating(DType dtype);
constexpr bool is_coded(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }
Format format_of(DType dtype);  // ContractError for i32, u8 and fp64

// Parses "fp64", "fp32", "bf16", "fp16"; nothing for any other text.
std::optional<DType> parse_float_dtype(std::string_view text);

// The wider of two floating types: fp64 and then fp32 absorb all, bf16 with fp16 gives fp32 (as in PyTorch).
DType widest(DType a, DType b);

// The dtype of sums, statistics, losses and parameter gradients of a computation in `dtype`: fp32, beside fp64 fp64.
constexpr DType wide_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kF32> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBF16> {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::kF16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::kI32> {};
template <>
struct DTypeOf<uint8_t> : std::integral_constant<DType, DType::kU8> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kF64> {};
template <>
struct DTypeOf<Float8E4M3> : std::integral_constant<DType, DType::kE4M3> {};
template <>
struct DTypeOf<Float8E5M2> : std::integral_constant<DType, DType::kE5M2> {};

// Calls f.template operator()<T>() with the C++ type of fp32, bf16 or fp16. Kernels choose by dtype here only.
template <typename F>
decltype(auto) dispatch(DType dtype, F&& f) {
  if (dtype == DType::kF32) return f.template operator()<float>();
  if (dtype == DType::kBF16) return f.template operator()<BFloat16>();
  if (dtype == DType::kF16) return f.template operator()<Float16>();
  throw ContractError(fmt::format("[dispatch] expected fp32, bf16 or fp16, got {}", name(dtype)));
}

// The same with double for fp64.
template <typename F>
decltype(auto) dispatch_with_fp64(DType dtype, F&& f) {
  if (dtype == DType::kF64) return f.template operator()<double>();
  return dispatch(dtype, std::forward<F>(f));
}

}  // namespace mantissa

template <>
struct fmt::formatter<mantissa::DType> : fmt::formatter<fmt::string_view> {
  fmt::appender format(mantissa::DType dtype, fmt::format_context& context) const;  // see tensor.h
};
