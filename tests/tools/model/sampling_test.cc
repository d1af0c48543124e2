// The filters of the next token against Hugging Face's transformers (make_sampling_reference.py).
#include "tools/model/generate/generator.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/base/error.h"

namespace mantissa {
namespace {

// No filter at all, unlike the defaults.
SamplingFilters filters_of(const nlohmann::json& json) {
  return {.temperature = json.value("temperature", 1.0),
          .top_k = json.value("top_k", int64_t{0}),
          .top_p = json.value("top_p", 1.0),
          .min_p = json.value("min_p", 0.0),
          .repetition_penalty = json.value("repetition_penalty", 1.0)};
}

TEST(Sampling, FiltersAreThoseOfTransformers) {
  std::ifstream file("tests/tools/model/data/sampling.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  EXPECT_GT(cases.size(), 25u);
  for (const auto& expected : cases) {
    SCOPED_TRACE(expected.at("filters").dump());
    const std::vector<float> logits = expected.at("logits");
    const std::vector<int32_t> text = expected.at("text");
    const std::vector<TokenWeight> found = filtered_tokens(logits, text, filters_of(expected.at("filters")));
    double total = 0.0;
    for (const TokenWeight& token : found) total += token.weight;
    std::map<int32_t, double> probabilities;
    for (const TokenWeight& token : found) probabilities[token.token] = token.weight / total;
    const std::vector<int32_t> kept = expected.at("kept");
    ASSERT_EQ(probabilities.size(), kept.size());
    // Logits are fp32 here and fp64 there: rounded by 2^-24 of at most 12, over a temperature of 0.5.
    constexpr double kTolerance = 12 * 0x1p-24 / 0.5 * 2;
    for (size_t i = 0; i < kept.size(); ++i) {
      const double probability = expected.at("probabilities").at(i);
      EXPECT_NEAR(probabilities.at(kept[i]), probability, kTolerance * probability) << kept[i];
    }
  }
}

TEST(Sampling, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f};
  const std::vector<TokenWeight> found = filtered_tokens(logits, {}, {.temperature = 0.0, .top_k = 0});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].token, 1);
  const std::vector<int32_t> text = {1, 1};
  EXPECT_EQ(filtered_tokens(logits, text, {.temperature = 0.0, .repetition_penalty = 1.5})[0].token, 3);
}

TEST(Sampling, DrawsByWeight) {
  const std::vector<TokenWeight> three = {
      {.token = 7, .weight = 1.0}, {.token = 2, .weight = 0.5}, {.token = 9, .weight = 0.5}};
  EXPECT_EQ(draw_token(three, 0.0), 7);
  EXPECT_EQ(draw_token(three, 0.499), 7);
  EXPECT_EQ(draw_token(three, 0.5), 2);
  EXPECT_EQ(draw_token(three, 0.749), 2);
  EXPECT_EQ(draw_token(three, 0.75), 9);
  EXPECT_EQ(draw_token(three, 1.0), 9);
}

TEST(Sampling, ValuesOutsideOfTheirRangeAreRefused) {
  EXPECT_NO_THROW(SamplingFilters().require_valid());
  for (const SamplingFilters& wrong :
       {SamplingFilters{.temperature = -0.1}, SamplingFilters{.temperature = NAN}, SamplingFilters{.top_k = -1},
        SamplingFilters{.top_p = 0.0}, SamplingFilters{.top_p = 1.1}, SamplingFilters{.min_p = -0.1},
        SamplingFilters{.min_p = 1.5}, SamplingFilters{.repetition_penalty = 0.0}}) {
    EXPECT_THROW(wrong.require_valid(), ConfigError);
  }
}

}  // namespace
}  // namespace mantissa
