// Hardware: devices that are described and not there: what their makers promise of them.
//
// FLOP/s are of dense products, a multiply-add counting twice, and bandwidths decimal. Nothing here is measured: each
// entry names its source. Tensor-core peaks of GPUs that core/cuda/device_models.h knows are those.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/backend/kernel_call.h"
#include "core/kernels/fp8_gemm_support.h"

namespace mantissa {

struct Hardware {
  std::string_view name;                                      // "h100", as on the command line
  std::string_view title;                                     // "NVIDIA H100 SXM"
  std::array<double, std::size(kAllProductFormats)> flops{};  // by ProductFormat, FLOP/s; 0: no units, or no known rate
  double memory_bytes = 0;
  double memory_bandwidth = 0;  // bytes/s
  double link_bandwidth = 0;    // bytes/s that a device sends to the others of its node: one direction
  double watts = 0;             // TDP, or the most that was measured where the maker says that
  double joules_per_byte = 0;   // of its kind of memory
  // What of 8 bits its library multiplies from codes.
  Fp8GemmSupport fp8_gemm_support = Fp8GemmSupport::kNone;
  std::string_view source;

  double peak(ProductFormat format) const { return flops[static_cast<size_t>(format)]; }
  // Energy of a FLOP with all of the power in the arithmetic: an upper bound, TDP / peak.
  double joules_per_flop(ProductFormat format) const { return watts / peak(format); }
};

// Energy of moving a bit between memory and processor. O'Connor et al., "Fine-Grained DRAM: Energy-Efficient DRAM for
// Extreme Bandwidth Systems", MICRO 2017: HBM2 3.9 pJ, GDDR5 14 pJ. Later generations of both take somewhat less.
inline constexpr double kHbmJoulesPerByte = 8 * 3.9e-12;
inline constexpr double kGddrJoulesPerByte = 8 * 14e-12;

std::span<const Hardware> all_hardware();
// By name, in capitals or not. ConfigError naming what is known, and what is most like it.
const Hardware& find_hardware(std::string_view name);

// What a product in some format runs on.
struct ProductUnits {
  ProductFormat format = ProductFormat::kF32;
  int products = 1;  // of that format, for each of the wanted one
  double flops = 0;  // FLOP/s of the wanted product
};

// The format's own units; else wider ones: bf16 and fp16 operands are widened to fp32, tf32 is left at fp32. A device
// with no rate for fp32 makes such products of six in bf16 (core/ops/fp32_product.h). Nothing for fp8 and fp4, which
// the kernels emulate by other calls, and where none of these is known.
std::optional<ProductUnits> units_for(const Hardware& hardware, ProductFormat wanted);

}  // namespace mantissa
