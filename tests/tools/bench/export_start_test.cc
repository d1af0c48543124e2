#include "tools/bench/export_start.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/local/local_communicator.h"
#include "core/io/safetensors.h"
#include "tests/core/io/temp_folder.h"
#include "tests/testing/error_of.h"
#include "tools/bench/random_tokens.h"
#include "tools/train/session.h"

namespace mantissa::testing {
namespace {

Config small_config(const std::string& tokens, const std::vector<std::string>& overrides = {}) {
  return parse_config(
      "model: {layers: 2, width: 32, heads: 2, context: 16, vocab: 64}\n"
      "data: {format: tokens, layout: u16, train: [" +
          tokens +
          "], validation_fraction: 0}\n"
          "train: {global_batch: 4, micro_batch: 2, eval_interval: 0}\n"
          "precision: {weights: fp32}\ndevice: cpu\n",
      "test", overrides);
}

TEST(ExportStart, HoldsWhatTrainingStartsFrom) {
  const TempFolder folder;
  LocalGroup group(1);
  const RandomTokens tokens(group.rank(0), 64);
  const Config config = small_config(tokens.path());
  export_start(config, 3, folder.file("start"));
  const SafetensorsReader file(folder.file("start"));
  EXPECT_EQ(file.metadata().at("model.width"), "32");
  EXPECT_EQ(file.metadata().at("model.mlp_width"), "128");
  EXPECT_EQ(std::stof(file.metadata().at("optimizer.lr")), 3e-4f);

  Session session(config, group.rank(0));
  const ParameterSet& parameters = session.runtime.parameters;
  ASSERT_EQ(file.entries().size(), static_cast<size_t>(parameters.size()) + 2);
  for (int i = 0; i < parameters.size(); ++i) {
    std::vector<float> held(static_cast<size_t>(parameters[i].numel())), exported(held.size());
    session.runtime.backend->download(parameters[i].weight, held.data(), *session.runtime.stream);
    const SafetensorsEntry& entry = file.at(parameters[i].name);
    file.read(entry.name, DType::kF32, entry.shape, std::as_writable_bytes(std::span(exported)));
    EXPECT_EQ(held, exported) << entry.name;
  }
  const std::vector<int64_t> shape = {3, 4, 16};
  std::vector<int32_t> exported_tokens(192), exported_targets(192), tokens_of_step(64), targets_of_step(64);
  file.read("tokens", DType::kI32, shape, std::as_writable_bytes(std::span(exported_tokens)));
  file.read("targets", DType::kI32, shape, std::as_writable_bytes(std::span(exported_targets)));
  session.data.train(2 * 4, tokens_of_step, targets_of_step);  // the third step
  EXPECT_TRUE(std::equal(tokens_of_step.begin(), tokens_of_step.end(), exported_tokens.begin() + 128));
  EXPECT_TRUE(std::equal(targets_of_step.begin(), targets_of_step.end(), exported_targets.begin() + 128));
}

TEST(ExportStart, RefusesWhatIsNotGpt2) {
  const TempFolder folder;
  LocalGroup group(1);
  const RandomTokens tokens(group.rank(0), 64);
  for (const char* setting :
       {"model.norm=rms_norm", "model.position=rope", "model.tie_head=false", "model.dropout=0.1"}) {
    EXPECT_NE(
        error_of([&] { export_start(small_config(tokens.path(), {setting}), 1, folder.file("x")); }).find("only GPT-2"),
        std::string::npos)
        << setting;
  }
  EXPECT_THROW(export_start(small_config(tokens.path()), 1, folder.file("no/folder")), DataError);
}

// The tokens of a file, of which each is a Token.
template <typename Token>
std::vector<Token> tokens_of(const RandomTokens& file) {
  std::ifstream stream(file.path(), std::ios::binary);
  std::vector<Token> tokens(size_t{1} << 21);
  stream.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
  EXPECT_TRUE(stream);
  EXPECT_EQ(stream.peek(), std::ifstream::traits_type::eof());
  return tokens;
}

TEST(RandomTokens, AreDrawnWithAProbabilityOfOneByRank) {
  LocalGroup group(1);
  const RandomTokens file(group.rank(0), 1000);
  EXPECT_EQ(file.layout(), TokenLayout::kRawU16);
  const auto tokens = tokens_of<uint16_t>(file);
  std::vector<double> counts(1000);
  for (const uint16_t token : tokens) counts.at(token) += 1.0;
  // Token k falls to the draws u in [ln(k + 1), ln(k + 2)) / ln(1000).
  for (const size_t k : {0u, 1u, 9u, 99u}) {
    const double expected =
        static_cast<double>(tokens.size()) * std::log1p(1.0 / static_cast<double>(k + 1)) / std::log(1000.0);
    EXPECT_NEAR(counts[k], expected, 5.0 * std::sqrt(expected)) << k;  // five standard deviations
  }
}

TEST(RandomTokens, OfALargeVocabularyAreWider) {
  LocalGroup group(1);
  const RandomTokens file(group.rank(0), 131072);
  EXPECT_EQ(file.layout(), TokenLayout::kRawU32);
  const auto tokens = tokens_of<uint32_t>(file);
  const auto wide = std::count_if(tokens.begin(), tokens.end(), [](uint32_t token) { return token >= 65536; });
  const double expected = static_cast<double>(tokens.size()) * std::log(2.0) / std::log(131072.0);
  EXPECT_NEAR(static_cast<double>(wide), expected, 5.0 * std::sqrt(expected));
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 131072u);
}

}  // namespace
}  // namespace mantissa::testing
