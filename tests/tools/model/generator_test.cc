// Texts by the cache of keys and values against texts by whole passes, for models of every family.
#include "tools/model/generate/generator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/io/temp_folder.h"
#include "tests/testing/every_case.h"
#include "tests/tools/model/hf_reference.h"
#include "tools/model/runtime/loaded_model.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

constexpr GeneratorOptions kBatch{.batch = 3};

LoadedModel load(const std::string& name, const std::vector<std::string>& overrides = {"precision.compute=fp32"}) {
  return load_model(testing::hf_folder(name), overrides,
                    [](ModelRuntime& dry, const LoadedModel& model) { generate_dry(dry, model.config.model, kBatch); });
}

// The emulated GPU: seconds for a pass over all tokens of a context.
bool is_slow(const LoadedModel& model) {
  return model.runtime->backend->describe().find("emulated") != std::string::npos;
}

// The tokens that each prompt is continued with.
Texts continued(const LoadedModel& model, const Texts& prompts, const SamplingOptions& options,
                const GeneratorOptions& generator = kBatch) {
  Texts texts(prompts.size());
  Generator(*model.runtime, model.config.model, generator).run(prompts, options, [&](size_t index, int32_t token) {
    texts.at(index).push_back(token);
    return Continue::kYes;
  });
  return texts;
}

// The same by a pass over all tokens that the model sees, for each token.
std::vector<int32_t> by_whole_passes(const LoadedModel& model, std::vector<int32_t> text, int64_t count) {
  const ModelConfig& config = model.config.model;
  ModelRuntime& runtime = *model.runtime;
  const Tensor tokens = runtime.backend->make_tensor(DType::kI32, {config.context}, "tokens");
  std::vector<int32_t> added;
  int64_t begin = std::max<int64_t>(0, std::ssize(text) - config.context);
  while (std::ssize(added) < count) {
    if (std::ssize(text) - begin > config.context) begin = std::ssize(text) - kept_tokens(config.context);
    std::vector<int32_t> window(text.begin() + begin, text.end());
    const int64_t length = std::ssize(window);
    window.resize(static_cast<size_t>(config.context));
    runtime.backend->upload(window.data(), tokens, *runtime.stream);
    Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
    const Tensor logits = next_logits(tape, *runtime.model, tokens, length, config);
    std::vector<float> values(static_cast<size_t>(config.vocab));
    runtime.backend->download(logits, values.data(), *runtime.stream);
    added.push_back(static_cast<int32_t>(std::ranges::max_element(values) - values.begin()));
    text.push_back(added.back());
  }
  return added;
}

std::vector<int32_t> prompt_of(int64_t length, int32_t first, int64_t vocab) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>((first + 7 * i * i + i) % vocab));
  return prompt;
}

class GeneratorOfFamily : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, GeneratorOfFamily, ::testing::ValuesIn(testing::kHfModels),
                         [](const auto& info) { return std::string(info.param); });

// Prompts of several lengths, more than the batch has rows, so that texts end and start beside others.
TEST_P(GeneratorOfFamily, GreedyTextsAreThoseOfWholePasses) {
  const LoadedModel model = load(GetParam());
  if (is_slow(model) && testing::is_left_out_on_slow_devices(GetParam())) {
    GTEST_SKIP() << "three families on the emulated GPU";
  }
  const SamplingOptions greedy{.tokens = is_slow(model) ? 4 : 14, .filters = {.temperature = 0.0}};
  Texts prompts, expected;
  for (const int64_t length : {1, 8, 3, 20, 5}) {
    prompts.push_back(prompt_of(length, static_cast<int32_t>(length), model.config.model.vocab));
    expected.push_back(by_whole_passes(model, prompts.back(), greedy.tokens));
  }
  EXPECT_EQ(continued(model, prompts, greedy), expected);
  EXPECT_EQ(continued(model, prompts, greedy, {.batch = 1, .keeps_packed = true}), expected);
}

// Prompts that fill the context, exceed it, and reach its end twice.
TEST_P(GeneratorOfFamily, AFullContextGoesOnWithItsSecondHalf) {
  const LoadedModel model = load(GetParam());
  const ModelConfig& config = model.config.model;
  if (is_slow(model) && !testing::every_case() && GetParam() != std::string("mistral")) {
    GTEST_SKIP() << "one family on the emulated GPU";
  }
  const SamplingOptions greedy{.tokens = is_slow(model) ? 5 : config.context + 5, .filters = {.temperature = 0.0}};
  Texts prompts, expected;
  for (const int64_t length : {config.context - 3, config.context, config.context + 9}) {
    prompts.push_back(prompt_of(length, 1, config.vocab));
    expected.push_back(by_whole_passes(model, prompts.back(), greedy.tokens));
  }
  EXPECT_EQ(continued(model, prompts, greedy), expected);
}

TEST(Generator, ATextDependsOnItsSeedItsIndexAndItsPrompt) {
  const LoadedModel model = load("llama3", {"precision.compute=bf16"});
  const SamplingOptions options{.tokens = 20, .filters = {.temperature = 1.5, .top_k = 0}};
  const std::vector<int32_t> prompt = prompt_of(6, 3, model.config.model.vocab);
  const Texts four = continued(model, {prompt, prompt, prompt, prompt}, options);
  EXPECT_NE(four[0], four[1]);
  EXPECT_EQ(four, continued(model, {prompt, prompt, prompt, prompt}, options, {.batch = 1}));
  EXPECT_EQ(continued(model, {prompt}, options)[0], four[0]);
  SamplingOptions other = options;
  other.seed = 2;
  EXPECT_NE(continued(model, {prompt}, other)[0], four[0]);
}

TEST(Generator, ATextEndsWhereItsReaderSaysSo) {
  const LoadedModel model = load("llama2");
  const std::vector<int32_t> prompt = prompt_of(4, 1, model.config.model.vocab);
  const SamplingOptions greedy{.tokens = 6, .filters = {.temperature = 0.0}};
  const std::vector<int32_t> whole = continued(model, {prompt}, greedy)[0];
  Texts texts(4);
  Generator(*model.runtime, model.config.model, kBatch)
      .run(Texts{prompt, prompt, prompt, prompt}, greedy, [&](size_t index, int32_t token) {
        texts.at(index).push_back(token);
        return texts.at(index).size() > index ? Continue::kNo : Continue::kYes;
      });
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], std::vector(whole.begin(), whole.begin() + static_cast<int64_t>(i) + 1));
  }
}

TEST(Generator, DrawsNoIdBeyondTheTokenizer) {
  const LoadedModel model = load("llama2");
  const SamplingOptions any{.tokens = 40, .filters = {.temperature = 100.0, .top_k = 0}};
  const Texts texts = continued(model, {{1, 2}, {3}}, any, {.batch = 2, .vocab = 5});
  EXPECT_EQ(std::ranges::max(texts[0]), 4);
  EXPECT_EQ(std::ranges::max(texts[1]), 4);
  Generator generator(*model.runtime, model.config.model, {.vocab = 5});
  EXPECT_EQ(testing::message_of<DataError>([&] { generator.require_valid({5}, any); }),
            "the prompt holds token 5, the vocabulary has 5");
}

TEST(Generator, RefusesPromptsAndOptions) {
  const LoadedModel model = load("gpt2");
  Generator generator(*model.runtime, model.config.model);
  const auto message = [&](const std::vector<int32_t>& prompt, const SamplingFilters& filters) {
    return testing::message_of<Error>([&] { generator.require_valid(prompt, {.filters = filters}); });
  };
  EXPECT_EQ(message({}, {}), "the prompt must hold at least one token");
  EXPECT_EQ(message({-1}, {}),
            "the prompt holds token -1, the vocabulary has " + std::to_string(model.config.model.vocab));
  EXPECT_EQ(message({1}, {.temperature = -1.0}), "the temperature must be a number >= 0, got -1");
}

}  // namespace
}  // namespace mantissa
