#include "core/cuda/device_models.h"

namespace mantissa::cuda {
namespace {

struct Row {
  std::string_view gpu;
  double half_teraflops, tf32_teraflops, codes_teraflops;
};

// Sources, all by NVIDIA. Rates "with sparsity" are halved.
//   H100 SXM: H100 Tensor Core GPU Architecture (white paper, 2022), table of peak rates: 989.4, 494.7 and 1978.9.
//   H100 PCIe: H100 data sheet, 2022: 1513, 756 and 3026 with sparsity. H100 NVL: H100 data sheet, 2024: 1671, 835 and
//   3341.
//   H200: H200 data sheet: SXM 1979, 989 and 3958, NVL 1671, 835 and 3341, with sparsity.
//   A100: A100 data sheet: 312 and 156 for all forms.
//   L40S: L40S data sheet: 362.05, 183 and 733.
//   RTX 4090: Ada GPU Architecture (white paper), appendix A: 165.2, 82.6 and 330.3 with fp32 accumulation.
//   B200: HGX B200 data sheet, eight GPUs: 36, 18 and 72 PFLOPS with sparsity.
constexpr Row kRows[] = {
    {"NVIDIA H100 80GB HBM3", 989.4, 494.7, 1978.9}, {"NVIDIA H100 PCIe", 756.5, 378, 1513},
    {"NVIDIA H100 NVL", 835.5, 417.5, 1670.5},       {"NVIDIA H200", 989.5, 494.5, 1979},
    {"NVIDIA H200 NVL", 835.5, 417.5, 1670.5},       {"NVIDIA A100-SXM4-40GB", 312, 156, 0},
    {"NVIDIA A100-SXM4-80GB", 312, 156, 0},          {"NVIDIA A100-PCIE-40GB", 312, 156, 0},
    {"NVIDIA A100 80GB PCIe", 312, 156, 0},          {"NVIDIA L40S", 362.05, 183, 733},
    {"NVIDIA GeForce RTX 4090", 165.2, 82.6, 330.3}, {"NVIDIA B200", 2250, 1125, 4500},
};

}  // namespace

std::optional<DatasheetPeaks> datasheet_peaks(std::string_view gpu_name) {
  for (const Row& row : kRows) {
    if (row.gpu != gpu_name) continue;
    return DatasheetPeaks{
        .half = row.half_teraflops * 1e12, .tf32 = row.tf32_teraflops * 1e12, .codes = row.codes_teraflops * 1e12};
  }
  return std::nullopt;
}

std::optional<double> datasheet_flops(std::string_view gpu_name, DType dtype, Fp32Math fp32_math) {
  const auto peaks = datasheet_peaks(gpu_name);
  if (!peaks) return std::nullopt;
  if (dtype == DType::kBF16 || dtype == DType::kF16) return peaks->half;
  if (dtype == DType::kU8 && peaks->codes > 0.0) return peaks->codes;
  if (dtype == DType::kF32 && fp32_math == Fp32Math::kTf32) return peaks->tf32;
  return std::nullopt;
}

}  // namespace mantissa::cuda
