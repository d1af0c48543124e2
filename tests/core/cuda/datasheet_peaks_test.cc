#include "core/cuda/datasheet_peaks.h"

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

}  // namespace
}  // namespace mantissa::cuda
