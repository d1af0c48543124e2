// Hardware: devices by the data sheets of their makers, to predict for without having them.
//
// FLOP/s are of dense products, a multiply-add counting twice; bandwidths are decimal. Nothing is measured here: each
// entry names its sources. Tensor-core peaks of GPUs in core/cuda/device_models.h are taken from there.
#pragma once

#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/backend/decorators.h"
#include "core/kernels/fp8_gemm_support.h"

namespace mantissa {

struct Hardware {
  std::string_view name;                                      // "h100", as on the command line
  std::string_view title;                                     // "NVIDIA H100 SXM"
  std::array<double, std::size(kAllProductFormats)> flops{};  // by ProductFormat, FLOP/s; 0: no units, or no known rate
  double memory_bytes = 0;
  double memory_bandwidth = 0;  // bytes/s
  double link_bandwidth = 0;    // bytes/s from a device to the others of its node: one direction
  double watts = 0;             // TDP, or the largest measured power if the maker gives that
  double idle_watts = 0;        // without work, at the clocks of work and with a program's context on it
  double joules_per_byte = 0;   // by its kind of memory
  Fp8GemmSupport fp8_gemm_support = Fp8GemmSupport::kNone;  // 8-bit products that its library multiplies from codes
  std::string_view source, idle_source;

  double peak(ProductFormat format) const { return flops[static_cast<size_t>(format)]; }
  // Beyond idle power. An estimate: at the peak, arithmetic takes all of the TDP but the idle power.
  double joules_per_flop(ProductFormat format) const { return (watts - idle_watts) / peak(format); }
};

std::span<const Hardware> all_hardware();
// The names of all devices, or of those with units_for() a format: "t4, v100".
std::string hardware_names(std::optional<ProductFormat> format = std::nullopt);
// By name, in any case. ConfigError with the known names and the nearest one.
const Hardware& find_hardware(std::string_view name);

// Units that multiply in some format.
struct ProductUnits {
  ProductFormat format = ProductFormat::kF32;
  int products = 1;  // in `format`, for a product in the wanted format
  double flops = 0;  // FLOP/s of the wanted product
};

// The format's own units; else wider ones: fp32 for bf16, fp16 and tf32, and six products in bf16 for fp32
// (core/ops/fp32_product.h). Nothing for fp8 and fp4, which kernels emulate by other calls, for fp64, and for unknown
// rates.
std::optional<ProductUnits> units_for(const Hardware& hardware, ProductFormat wanted);

}  // namespace mantissa
