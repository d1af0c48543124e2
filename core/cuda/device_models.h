// GPU models: the rates in their data sheets.
#pragma once

#include <optional>
#include <string_view>

#include "core/tensor/device_options.h"
#include "core/tensor/dtype.h"

namespace mantissa::cuda {

// FLOP/s of dense products on tensor cores, summed in fp32, according to NVIDIA's data sheets.
struct DatasheetPeaks {
  double half = 0;  // bf16 and fp16 operands
  double tf32 = 0;
  double codes = 0;  // e4m3 and e5m2 operands; 0: the GPU has no FP8 units
};

// The rates by the driver's name of a GPU, such as "NVIDIA H100 80GB HBM3"; nothing for a GPU outside the table. Names
// match as a whole, because variants of a GPU (PCIe, NVL, laptop, a slice of one) have similar names and other rates.
std::optional<DatasheetPeaks> datasheet_peaks(std::string_view gpu_name);

// The rate for products of `dtype`, where u8 stands for 8-bit codes. Nothing for products that use no tensor core, such
// as fp32 at full precision.
std::optional<double> datasheet_flops(std::string_view gpu_name, DType dtype, Fp32Math fp32_math);

}  // namespace mantissa::cuda
