#include "tools/bench/export_start.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/local/local_communicator.h"
#include "core/io/safetensors.h"
#include "tests/core/io/temp_folder.h"
#include "tests/testing/error_of.h"
#include "tools/train/step/session.h"

namespace mantissa::testing {
namespace {

Config small_config(const std::vector<std::string>& overrides = {}) {
  return parse_config(
      "model: {layers: 2, width: 32, heads: 2, context: 16, vocab: 64}\n"
      "data: {train: [none]}\n"
      "train: {global_batch: 4, micro_batch: 2, eval_interval: 0}\n"
      "precision: {weights: fp32}\ndevice: cpu\n",
      "test", overrides);
}

TEST(ExportStart, HoldsWhatTrainingStartsFrom) {
  const TempFolder folder;
  LocalGroup group(1);
  const Config config = small_config();
  export_start(config, 3, folder.file("start"));
  const SafetensorsReader file(folder.file("start"));
  EXPECT_EQ(file.metadata().at("model.width"), "32");
  EXPECT_EQ(file.metadata().at("model.mlp_width"), "128");
  EXPECT_EQ(std::stof(file.metadata().at("optimizer.lr")), 3e-4f);

  Session session(config, group.rank(0), SessionParts{.batches = random_batches});
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
  session.batches->train(2 * 4, {tokens_of_step, targets_of_step});  // the third step
  EXPECT_TRUE(std::equal(tokens_of_step.begin(), tokens_of_step.end(), exported_tokens.begin() + 128));
  EXPECT_TRUE(std::equal(targets_of_step.begin(), targets_of_step.end(), exported_targets.begin() + 128));
}

TEST(ExportStart, RefusesWhatIsNotGpt2) {
  const TempFolder folder;
  for (const char* setting :
       {"model.norm=rms_norm", "model.position=rope", "model.tie_head=false", "model.dropout=0.1"}) {
    EXPECT_NE(error_of([&] { export_start(small_config({setting}), 1, folder.file("x")); }).find("only GPT-2"),
              std::string::npos)
        << setting;
  }
  EXPECT_THROW(export_start(small_config(), 1, folder.file("no/folder")), DataError);
}

std::vector<int32_t> tokens_of(int64_t vocab, int64_t sequences) {
  const Config config = parse_config(
      fmt::format("model: {{layers: 1, width: 32, heads: 2, context: 1024, vocab: {}}}\ndata: {{train: [none]}}\n",
                  vocab),
      "test");
  std::vector<int32_t> tokens(static_cast<size_t>(sequences * 1024)), targets(tokens.size());
  random_batches(config, Objective::kNextToken)->train(0, {tokens, targets});
  for (size_t i = 0; i + 1 < 1024; ++i) EXPECT_EQ(targets[i], tokens[i + 1]);
  return tokens;
}

TEST(RandomBatches, DrawTokensWithAProbabilityOfOneByRank) {
  const std::vector<int32_t> tokens = tokens_of(1000, 2048);
  std::vector<double> counts(1000);
  for (const int32_t token : tokens) counts.at(static_cast<size_t>(token)) += 1.0;
  // A draw u in [ln(k + 1), ln(k + 2)) / ln(1000) gives token k.
  for (const size_t k : {0u, 1u, 9u, 99u}) {
    const double expected =
        static_cast<double>(tokens.size()) * std::log1p(1.0 / static_cast<double>(k + 1)) / std::log(1000.0);
    EXPECT_NEAR(counts[k], expected, 5.0 * std::sqrt(expected)) << k;  // five standard deviations
  }
}

TEST(RandomBatches, CoverALargeVocabulary) {
  const std::vector<int32_t> tokens = tokens_of(131072, 2048);
  const auto wide = std::count_if(tokens.begin(), tokens.end(), [](int32_t token) { return token >= 65536; });
  const double expected = static_cast<double>(tokens.size()) * std::log(2.0) / std::log(131072.0);
  EXPECT_NEAR(static_cast<double>(wide), expected, 5.0 * std::sqrt(expected));
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 131072);
}

}  // namespace
}  // namespace mantissa::testing
