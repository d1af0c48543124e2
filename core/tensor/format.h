// Floating-point formats described as data, with exact scalar conversions, whether or not tensors store them.
//
// A code is the format's bit pattern in the low 1 + exponent_bits + mantissa_bits bits: sign, exponent, mantissa (tf32
// has 19-bit codes). Sources: IEEE 754-2019 (fp32, fp16); OCP 8-bit Floating Point Specification 1.0 (e4m3, e5m2); OCP
// Microscaling Formats Specification 1.0 (e2m1); bf16 and tf32 are fp32 with 7 and 10 mantissa bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace mantissa {

enum class Format : uint8_t { kF32, kTF32, kBF16, kF16, kE4M3, kE5M2, kE2M1 };
inline constexpr Format kAllFormats[] = {Format::kF32,  Format::kTF32, Format::kBF16, Format::kF16,
                                         Format::kE4M3, Format::kE5M2, Format::kE2M1};

struct FormatInfo {
  std::string_view name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  double max;            // largest finite value
  double min_normal;     // smallest positive normal value
  double min_subnormal;  // smallest positive value
  double epsilon;        // distance from 1 to the next larger value
  bool has_infinity;     // not e2m1, nor e4m3: its largest exponent holds numbers up to 448
  uint32_t nan_count;    // NaN codes, both signs; e2m1: 0
};

const FormatInfo& info(Format format);

// The result for Inf and for finite values beyond the format's maximum.
//   kNo:  Inf, or NaN if the format has no Inf (e4m3: above 464, half-way to the number that would follow 448).
//   kYes: the maximum. This hides overflow: count non-finite values before such a cast.
// NaN stays NaN in both. e2m1 has neither Inf nor NaN: it saturates in both, and NaN becomes +6, as in CUDA.
enum class Saturation : uint8_t { kNo, kYes };

// The code of the representable value nearest to `value`, ties to the even code; subnormals are kept. A NaN keeps its
// sign and the leading bits of its payload and becomes quiet.
uint32_t encode(Format format, float value, Saturation saturation);

// The value of a code: exact, since every format here is a subset of fp32. ContractError for bits that it lacks.
float decode(Format format, uint32_t code);

// decode(encode(value)): the value after a round trip through the format.
float quantize(Format format, float value, Saturation saturation);

// 8-bit storage types, for which arithmetic is done in fp32. Kernels convert them with core/cuda/device/float8.h.
struct Float8E4M3 {
  uint8_t bits = 0;
  bool operator==(const Float8E4M3&) const = default;
};

struct Float8E5M2 {
  uint8_t bits = 0;
  bool operator==(const Float8E5M2&) const = default;
};

}  // namespace mantissa
