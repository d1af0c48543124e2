// The rates that NVIDIA's data sheets promise.
#pragma once

#include <optional>
#include <string_view>

#include "core/kernels/device_options.h"
#include "core/tensor/dtype.h"

namespace mantissa::cuda {

// FLOP/s of dense products on tensor cores, summed in fp32.
struct DatasheetPeaks {
  double half = 0;  // bf16 and fp16 operands
  double tf32 = 0;
  double codes = 0;  // e4m3 and e5m2 operands; 0: the GPU has no units for them
};

// By the driver's name of a GPU, such as "NVIDIA H100 80GB HBM3"; nothing for one that is not in the table. Whole
// names: variants of a GPU (PCIe, NVL, laptop, a slice of one) have similar names and other rates.
std::optional<DatasheetPeaks> datasheet_peaks(std::string_view gpu_name);

// The one of these for products of `dtype`, u8 being codes of 8 bits; nothing for what runs on no tensor core, such as
// fp32 at full precision.
std::optional<double> datasheet_flops(std::string_view gpu_name, DType dtype, Fp32Math fp32_math);

}  // namespace mantissa::cuda
