// Which weights can travel as codes.
#include "comm/coded_weights.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

constexpr TensorFormat kDelayed{Format::kE4M3, Scaling::kDelayed};

LinearFormats formats(std::optional<TensorFormat> forward, std::optional<TensorFormat> backward) {
  LinearFormats formats;
  formats.set(Product::kForward, Role::kWeight, forward);
  formats.set(Product::kInputGradient, Role::kWeight, backward);
  return formats;
}

std::optional<Format> format_with(const LinearFormats& linear, DType dtype = DType::kBF16,
                                  ParameterRole role = ParameterRole::kOther, Shape shape = {8, 8}) {
  ParameterSet parameters;
  Parameter& parameter = parameters.add("layer.weight", shape, {});
  parameter.working_dtype = dtype;
  parameter.role = role;
  Precision precision;
  precision.linear = linear;
  const CodedWeights coded = coded_weights(parameters, UniformPrecision(precision));
  return coded.empty() ? std::nullopt : coded[0];
}

TEST(CodedWeights, AreThoseThatBothProductsRoundAlike) {
  EXPECT_EQ(format_with(formats(kDelayed, kDelayed)), Format::kE4M3);
  const TensorFormat e5m2{Format::kE5M2, Scaling::kDelayed};
  EXPECT_EQ(format_with(formats(e5m2, e5m2)), Format::kE5M2);
  EXPECT_EQ(format_with(formats(kDelayed, e5m2)), std::nullopt);
  EXPECT_EQ(format_with(formats(kDelayed, std::nullopt)), std::nullopt);
  EXPECT_EQ(format_with(formats(std::nullopt, kDelayed)), std::nullopt);
  EXPECT_EQ(format_with({}), std::nullopt);
}

TEST(CodedWeights, NeedScalesThatAreKnownBefore) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const TensorFormat format{Format::kE4M3, scaling};
    EXPECT_EQ(format_with(formats(format, format)), std::nullopt) << name(scaling);
  }
}

TEST(CodedWeights, AreMatricesOfLinearLayersInBf16) {
  const LinearFormats rounded = formats(kDelayed, kDelayed);
  for (const DType dtype : {DType::kF32, DType::kF16}) EXPECT_EQ(format_with(rounded, dtype), std::nullopt);
  EXPECT_EQ(format_with(rounded, DType::kBF16, ParameterRole::kEmbedding), std::nullopt);
  EXPECT_EQ(format_with(rounded, DType::kBF16, ParameterRole::kOther, {64}), std::nullopt);
}

}  // namespace
}  // namespace mantissa
