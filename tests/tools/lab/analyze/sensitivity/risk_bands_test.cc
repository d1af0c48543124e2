// Thresholds of the share of elements at risk.
#include "tools/lab/analyze/sensitivity/local_scores.h"

#include <gtest/gtest.h>

#include <string>

namespace mantissa::testing {
namespace {

// Shares of tools/bench/risk_bands, docs/results/risk_bands.md.
TEST(RiskBands, AreThoseOfTheFormatInForwardProducts) {
  const auto band = [](const std::string& format, std::optional<Product> product, double share) {
    const PrecisionDecision decision{.layer = "blocks.0.mlp.up", .product = product, .format = format};
    return std::string(
        name(band_of({.underflow = share / 2.0, .precision = share / 2.0}, measured_thresholds(decision))));
  };
  EXPECT_EQ(band("current", Product::kForward, 0.07), "low");
  EXPECT_EQ(band("current", Product::kForward, 0.2), "mixed");
  EXPECT_EQ(band("current", Product::kForward, 0.3), "fp32");
  EXPECT_EQ(band("mxfp8", Product::kForward, 0.17), "low");
  EXPECT_EQ(band("mxfp8", Product::kForward, 1.0), "mixed") << "no share was harmful in nine of ten products";
  EXPECT_EQ(band("nvfp4", Product::kForward, 0.0), "mixed") << "no share was harmless";
  EXPECT_EQ(band("nvfp4", Product::kForward, 0.51), "fp32");
  EXPECT_EQ(band("fp16", std::nullopt, 0.09), "low");
  const auto overflowing = [](const std::string& format, std::optional<Product> product) {
    const PrecisionDecision decision{.layer = "blocks.0.mlp.up", .product = product, .format = format};
    return std::string(name(band_of({.overflow = 1e-7}, measured_thresholds(decision))));
  };
  EXPECT_EQ(overflowing("fp16", std::nullopt), "fp32") << "one Inf is enough";
  EXPECT_EQ(overflowing("current", Product::kForward), "low") << "it saturates";
  EXPECT_EQ(band("nvfp4", Product::kInputGradient, 0.9), "unrated");
  EXPECT_EQ(band("current", Product::kWeightGradient, 0.0), "unrated");
  EXPECT_EQ(band("current:e5m2", Product::kForward, 0.0), "unrated");
}

}  // namespace
}  // namespace mantissa::testing
