// The rates that NVIDIA's data sheets promise.
#pragma once

#include <optional>
#include <string_view>

namespace mantissa::cuda {

// FLOP/s of dense products on tensor cores, summed in fp32.
struct DatasheetPeaks {
  double half = 0;  // bf16 and fp16 operands
  double tf32 = 0;
};

// By the driver's name of a GPU, such as "NVIDIA H100 80GB HBM3"; nothing for one that is not in the table. Whole
// names: variants of a GPU (PCIe, NVL, laptop, a slice of one) have similar names and other rates.
std::optional<DatasheetPeaks> datasheet_peaks(std::string_view gpu_name);

}  // namespace mantissa::cuda
