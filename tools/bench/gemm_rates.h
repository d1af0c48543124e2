// How fast the device multiplies matrices, by dtype and size.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend/backend.h"
#include "tools/model/runtime/model_runtime.h"

namespace mantissa {

struct GemmRate {
  DType dtype = DType::kF32;
  int64_t size = 0;  // of a square product; multiples of 64 are aligned, others are odd
  double flops = 0;  // FLOP/s
  std::optional<double> share_of_peak{};
};

struct GemmPeak {
  DType dtype = DType::kF32;
  std::optional<double> flops{};
  std::string source;  // "multiply-adds on registers, measured", "data sheet"
};

// The device's peak rate: measured on a CPU, from the data sheet on a GPU, if known.
GemmPeak gemm_peak(const DeviceChoice& device, DType dtype);

// "bf16", "e4m3" for codes (u8).
std::string_view operand_name(DType dtype);

// Products of this dtype of aligned and odd sizes; larger ones on a GPU. Codes, which the device must multiply, have
// aligned sizes only.
std::vector<GemmRate> measure_gemm_rates(Backend& backend, Stream& stream, const GemmPeak& peak);

}  // namespace mantissa
