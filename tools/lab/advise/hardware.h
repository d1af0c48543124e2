// Hardware: devices by the data sheets of their makers.
//
// FLOP/s are of dense products, a multiply-add counting twice; bandwidths are decimal. Nothing is measured: each entry
// names its source. Tensor-core peaks of GPUs in core/cuda/device_models.h are taken from there.
#pragma once

#include <array>
#include <optional>
#include <span>
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
  double watts = 0;             // TDP, or the most that was measured if the maker gives that
  double joules_per_byte = 0;   // by its kind of memory
  Fp8GemmSupport fp8_gemm_support = Fp8GemmSupport::kNone;  // 8-bit products that its library multiplies from codes
  std::string_view source;

  double peak(ProductFormat format) const { return flops[static_cast<size_t>(format)]; }
  // An upper bound: TDP / peak.
  double joules_per_flop(ProductFormat format) const { return watts / peak(format); }
};

// Energy of moving a byte between memory and processor. O'Connor et al., "Fine-Grained DRAM: Energy-Efficient DRAM for
// Extreme Bandwidth Systems", MICRO 2017: HBM2 3.9 pJ a bit, GDDR5 14 pJ. Later generations take somewhat less.
inline constexpr double kHbmJoulesPerByte = 8 * 3.9e-12;
inline constexpr double kGddrJoulesPerByte = 8 * 14e-12;

std::span<const Hardware> all_hardware();
// By name, in any case. ConfigError with the known names and the nearest one.
const Hardware& find_hardware(std::string_view name);

// Units that multiply in some format.
struct ProductUnits {
  ProductFormat format = ProductFormat::kF32;
  int products = 1;  // in that format, for one product in the wanted one
  double flops = 0;  // FLOP/s of the wanted product
};

// The format's own units; else wider ones: fp32 for bf16, fp16 and tf32, and six products in bf16 for fp32
// (core/ops/fp32_product.h). Nothing for fp8 and fp4, which kernels emulate by other calls, and for unknown rates.
std::optional<ProductUnits> units_for(const Hardware& hardware, ProductFormat wanted);

}  // namespace mantissa
