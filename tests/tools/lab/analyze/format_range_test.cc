// Ranges that are found by trying against those of the formats' definitions.
#include "tools/lab/analyze/format_range.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/tools/lab/analyze/cpu_roundings.h"

namespace mantissa {
namespace {

using testing::CpuRoundings;

TEST(FormatRange, IsThatOfTheDefinition) {
  const CpuRoundings roundings;
  int compared = 0;
  for (const Rounding& rounding : roundings.all()) {
    if (rounding.scaling) continue;
    EXPECT_EQ(difference_from_definition(measure_range(rounding), rounding.format), "") << rounding.name;
    ++compared;
  }
  EXPECT_EQ(compared, static_cast<int>(std::size(kAllFormats)));
}

TEST(FormatRange, OverflowBeginsHalfWayBehindTheMaximum) {
  const CpuRoundings roundings;
  const auto overflow_from = [&](const char* name) { return measure_range(roundings.named(name)).overflow_from; };
  EXPECT_EQ(overflow_from("fp32"), std::nullopt);
  EXPECT_EQ(overflow_from("fp16"), 65520.0);
  EXPECT_EQ(overflow_from("bf16"), 0x1.ffp127);
  EXPECT_EQ(overflow_from("tf32"), 0x1.ffep127);
  EXPECT_EQ(overflow_from("e5m2"), 61440.0);
  EXPECT_EQ(overflow_from("e4m3"),
            static_cast<double>(std::nextafterf(464.0f, 1e3f)));  // 464 goes to 448, the even one
  EXPECT_EQ(overflow_from("e2m1"), 7.0);                          // saturates
}

TEST(FormatRange, ZeroIsWhatHalfOfTheSmallestNumberBecomes) {
  const CpuRoundings roundings;
  const auto underflow_at = [&](const char* name) { return measure_range(roundings.named(name)).underflow_at; };
  EXPECT_EQ(underflow_at("fp32"), 0.0);
  EXPECT_EQ(underflow_at("bf16"), 0x1p-134);
  EXPECT_EQ(underflow_at("fp16"), 0x1p-25);
  EXPECT_EQ(underflow_at("e4m3"), 0x1p-10);
  EXPECT_EQ(underflow_at("e5m2"), 0x1p-17);
  EXPECT_EQ(underflow_at("e2m1"), 0.25);
}

TEST(FormatRange, DynamicRange) {
  const CpuRoundings roundings;
  EXPECT_NEAR(measure_range(roundings.named("fp16")).dynamic_range_db(), 240.8, 0.05);  // 20 log10(65504 / 2^-24)
  EXPECT_NEAR(measure_range(roundings.named("e4m3")).dynamic_range_db(), 107.2, 0.05);
}

// A device that flushes subnormals and truncates is told from the format that it claims to have.
TEST(FormatRange, ShowsADeviceThatDiffers) {
  const CpuRoundings roundings;
  Rounding flushing = roundings.named("fp16");
  flushing.round = [exact = flushing.round](const std::vector<float>& values) {
    std::vector<float> stored = exact(values);
    for (float& value : stored) value = std::fabs(value) < 0x1p-14f ? 0.0f : value;
    return stored;
  };
  const FormatRange range = measure_range(flushing);
  EXPECT_EQ(range.min_positive, 0x1p-14);
  EXPECT_EQ(difference_from_definition(range, Format::kF16),
            "the smallest number is 6.1035156e-05, expected 5.9604645e-08");
}

}  // namespace
}  // namespace mantissa
