#include "core/cuda/device_models.h"

#include <gtest/gtest.h>

namespace mantissa::cuda {
namespace {

TEST(DatasheetPeaks, FormsOfAGpuAreToldApart) {
  EXPECT_EQ(datasheet_peaks("NVIDIA H100 80GB HBM3")->half, 989.4e12);
  EXPECT_EQ(datasheet_peaks("NVIDIA H100 PCIe")->half, 756.5e12);
  EXPECT_EQ(datasheet_peaks("NVIDIA H200")->tf32, 494.5e12);
  EXPECT_EQ(datasheet_peaks("NVIDIA H200 NVL")->tf32, 417.5e12);
}

TEST(DatasheetPeaks, UnknownGpusHaveNone) {
  for (const char* name :
       {"", "H100", "NVIDIA GB200", "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}) {
    EXPECT_FALSE(datasheet_peaks(name)) << name;
  }
}

TEST(DatasheetPeaks, TensorCoresTakeSixteenBitsAndTf32) {
  const char* const h100 = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(datasheet_flops(h100, DType::kBF16, Fp32Math::kFull), 989.4e12);
  EXPECT_EQ(datasheet_flops(h100, DType::kF16, Fp32Math::kTf32), 989.4e12);
  EXPECT_EQ(datasheet_flops(h100, DType::kF32, Fp32Math::kTf32), 494.7e12);
  EXPECT_FALSE(datasheet_flops(h100, DType::kF32, Fp32Math::kFull));
  EXPECT_EQ(datasheet_flops(h100, DType::kU8, Fp32Math::kFull), 1978.9e12);
  EXPECT_FALSE(datasheet_flops("NVIDIA A100-SXM4-80GB", DType::kU8, Fp32Math::kFull)) << "it multiplies no codes";
  EXPECT_FALSE(datasheet_flops("another GPU", DType::kBF16, Fp32Math::kFull));
}

}  // namespace
}  // namespace mantissa::cuda
