// The table of hardware: figures that belong together, names, and what runs on what.
#include "tools/lab/advise/hardware.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/cuda/device_models.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::error_of;

TEST(Hardware, EveryEntryIsWhole) {
  EXPECT_EQ(all_hardware().size(), 8u);
  for (const Hardware& hardware : all_hardware()) {
    SCOPED_TRACE(hardware.name);
    EXPECT_EQ(&find_hardware(hardware.name), &hardware);
    EXPECT_FALSE(hardware.title.empty());
    EXPECT_NE(hardware.source.find("20"), std::string_view::npos) << "a source has a year";
    EXPECT_GT(hardware.memory_bytes, 15e9);
    EXPECT_LT(hardware.memory_bytes, 1e12);
    EXPECT_GT(hardware.memory_bandwidth, 3e11);
    EXPECT_LT(hardware.memory_bandwidth, 1e13);
    EXPECT_GT(hardware.link_bandwidth, 1e10);
    EXPECT_LT(hardware.link_bandwidth, hardware.memory_bandwidth);
    EXPECT_GE(hardware.watts, 70);
    EXPECT_LE(hardware.watts, 1000);
    EXPECT_GT(hardware.joules_per_byte, 0);
    double wider = 0;
    for (const ProductFormat format :
         {ProductFormat::kF32, ProductFormat::kTf32, ProductFormat::kF16, ProductFormat::kF8, ProductFormat::kF4}) {
      const double peak = hardware.peak(format);
      if (peak <= 0.0) continue;
      EXPECT_GT(peak, wider) << name(format) << ": fewer bits are faster";
      wider = peak;
    }
    const bool has_codes = hardware.peak(ProductFormat::kF8) > 0.0;
    EXPECT_EQ(has_codes, hardware.fp8_gemm_support != Fp8GemmSupport::kNone);
  }
}

TEST(Hardware, TensorCoresAreThoseOfTheDataSheets) {
  const Hardware& h100 = find_hardware("h100");
  EXPECT_EQ(h100.peak(ProductFormat::kBF16), cuda::datasheet_peaks("NVIDIA H100 80GB HBM3")->half);
  EXPECT_EQ(h100.peak(ProductFormat::kTf32), 494.7e12);
  EXPECT_EQ(h100.peak(ProductFormat::kF8), 1978.9e12);
  EXPECT_EQ(find_hardware("a100").peak(ProductFormat::kF8), 0.0);
  EXPECT_EQ(find_hardware("v100").peak(ProductFormat::kBF16), 0.0) << "Volta has no bf16";
}

TEST(Hardware, NamesAreTakenInAnySpelling) {
  EXPECT_EQ(find_hardware("H100").name, "h100");
  EXPECT_EQ(find_hardware("TPUv3").name, "tpu-v3");
  EXPECT_EQ(find_hardware("Gaudi 2").name, "gaudi2");
}

TEST(Hardware, AnUnknownNameIsToldWithTheNearest) {
  const std::string error = error_of([] { find_hardware("h101"); });
  EXPECT_NE(error.find("expected one of t4, v100, a100, h100, h200, b200, tpu-v3, gaudi2, got 'h101'"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("did you mean 'h100'?"), std::string::npos) << error;
}

// What has no units runs on wider ones, or on bf16's several times; what has neither, not at all.
TEST(Hardware, UnitsOfFormatsThatADeviceLacks) {
  const Hardware &t4 = find_hardware("t4"), &tpu = find_hardware("tpu-v3"), &b200 = find_hardware("b200");
  const auto bf16 = units_for(t4, ProductFormat::kBF16);
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->format, ProductFormat::kF32);
  EXPECT_EQ(bf16->flops, 8.1e12);
  const auto fp32 = units_for(tpu, ProductFormat::kF32);
  ASSERT_TRUE(fp32);
  EXPECT_EQ(fp32->format, ProductFormat::kBF16);
  EXPECT_EQ(fp32->products, 6);
  EXPECT_DOUBLE_EQ(fp32->flops, 123e12 / 6);
  EXPECT_FALSE(units_for(tpu, ProductFormat::kF16));
  EXPECT_FALSE(units_for(t4, ProductFormat::kF8)) << "emulation is other calls, not this product";
  EXPECT_EQ(units_for(b200, ProductFormat::kF4)->flops, 9000e12);
}

TEST(Hardware, EnergyOfAFlopIsAllOfThePowerAtThePeak) {
  EXPECT_DOUBLE_EQ(find_hardware("h100").joules_per_flop(ProductFormat::kBF16), 700 / 989.4e12);
  EXPECT_DOUBLE_EQ(find_hardware("t4").joules_per_byte, 112e-12);
  EXPECT_DOUBLE_EQ(find_hardware("h100").joules_per_byte, 31.2e-12);
}

}  // namespace
}  // namespace mantissa
