#include "core/quant/tensor_format.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

TEST(TensorFormat, ScalingsAreReadAsTheyAreWritten) {
  for (const Scaling scaling : kAllScalings) EXPECT_EQ(parse_scaling(name(scaling)), scaling);
  EXPECT_EQ(parse_scaling("mxfp4"), std::nullopt);
  EXPECT_EQ(parse_scaling(""), std::nullopt);
}

TEST(TensorFormat, RefusesFormatsThatARecipeDoesNotHave) {
  for (const Scaling scaling : kAllScalings) {
    for (const Format format : kAllFormats) {
      const bool is_8_bit = format == Format::kE4M3 || format == Format::kE5M2;
      const bool fits = scaling == Scaling::kTwoLevel ? format == Format::kE2M1 : is_8_bit;
      EXPECT_EQ(refusal({format, scaling}).empty(), fits) << name(scaling) << " " << info(format).name;
    }
  }
  EXPECT_EQ(refusal({Format::kBF16, Scaling::kMicro}), "mxfp8 scaling is for e4m3 and e5m2, got bf16");
  EXPECT_EQ(refusal({Format::kE4M3, Scaling::kTwoLevel}), "nvfp4 scaling is for e2m1, got e4m3");
}

}  // namespace
}  // namespace mantissa
