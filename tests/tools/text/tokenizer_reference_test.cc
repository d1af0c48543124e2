// Ids and texts equal those of Hugging Face's tokenizers (make_tokenizer_reference.py).
#include <gtest/gtest.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "core/base/thread_team.h"
#include "tests/core/io/temp_folder.h"
#include "tests/program/program.h"
#include "tools/text/tokenizer/bpe_trainer.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {
namespace {

const std::string kReference = "tests/tools/text/reference/";

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids, options);
  return ids;
}

// Replaces invalid UTF-8 by U+FFFD, one for each byte of an incomplete character.
std::string as_text(std::string text) {
  return nlohmann::json::parse(
      nlohmann::json(std::move(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

TEST(TokenizerReference, IdsAndTextsAreThoseOfTheOriginal) {
  const auto reference = nlohmann::json::parse(testing::read_file(kReference + "cases.json"));
  EXPECT_EQ(reference.size(), 6u);
  for (const auto& [name, cases] : reference.items()) {
    const auto tokenizer = open_tokenizer(kReference + name + ".json");
    EXPECT_GT(cases.size(), 70u);
    for (const auto& expected : cases) {
      const std::string text = expected.at("text");
      SCOPED_TRACE(name + ": " + expected.at("text").dump());
      const std::vector<int32_t> ids = expected.at("ids");
      EXPECT_EQ(ids_of(*tokenizer, text), ids);
      EXPECT_EQ(ids_of(*tokenizer, text), ids);  // now from the cache of words
      EXPECT_EQ(ids_of(*tokenizer, text, {.add_special_tokens = true}), expected.value("ids_with_special", ids));
      const std::string decoded = expected.value("decoded", text);
      EXPECT_EQ(as_text(tokenizer->decode(ids)), decoded);
      EXPECT_EQ(as_text(tokenizer->decode(ids, {.skip_special_tokens = true})),
                expected.value("decoded_without_special", decoded));
      std::string streamed;
      StreamingDecoder decoder(*tokenizer);
      for (const int32_t id : ids) streamed += decoder.add(id);
      EXPECT_EQ(streamed + decoder.finish(), tokenizer->decode(ids));
    }
  }
}

std::string repeated(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

// A text too large to encode as a whole gives the tokens of its parts: of the first unit, then equal repeats.
TEST(TokenizerReference, ALargeTextIsCutWhereThatChangesNothing) {
  const std::string unit = " begin\t  x\n  y \u3000 z\t " + testing::read_file(kReference + "train.txt") + "end";
  for (const std::string name : {"gpt2", "llama3", "qwen", "llama2", "metaspace", "digits"}) {
    const auto tokenizer = open_tokenizer(kReference + name + ".json");
    const std::vector<int32_t> one = ids_of(*tokenizer, unit), two = ids_of(*tokenizer, unit + unit);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), two.begin())) << name;
    const std::string text = repeated(unit, 500'000);
    std::vector<int32_t> expected = one;
    while (expected.size() < one.size() + (text.size() / unit.size() - 1) * (two.size() - one.size())) {
      expected.insert(expected.end(), two.begin() + static_cast<std::ptrdiff_t>(one.size()), two.end());
    }
    EXPECT_TRUE(ids_of(*tokenizer, text) == expected) << name;
  }
}

TEST(TokenizerReference, AnyNumberOfThreadsGivesTheSame) {
  const auto reference = nlohmann::json::parse(testing::read_file(kReference + "cases.json"));
  const int before = threads();
  for (const auto& [name, cases] : reference.items()) {
    std::string unit;
    for (const auto& part : cases) unit += part.at("text").get<std::string>() + " ";
    const std::string text = repeated(unit, 300'000) + repeated("without a special token ", 300'000);
    const auto tokenizer = open_tokenizer(kReference + name + ".json");
    set_threads(1);
    const std::vector<int32_t> ids = ids_of(*tokenizer, text);
    set_threads(3);
    EXPECT_TRUE(ids_of(*tokenizer, text) == ids) << name;
  }
  set_threads(before);
}

// 22 chunks of text, and a thread has 16 in a round.
TEST(TokenizerReference, ALargeTextShowsHowFarItIsInATerminal) {
  const int before = threads();
  const auto tokenizer = open_tokenizer(kReference + "gpt2.json");
  const std::vector<int32_t> one = ids_of(*tokenizer, " the");
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 700'000; ++i) {
    text += " the";
    expected.insert(expected.end(), one.begin(), one.end());
  }
  set_threads(1);
  EXPECT_TRUE(ids_of(*tokenizer, text) == expected);
  set_threads(before);
  const std::string folder = testing::fresh_folder("encode_terminal");
  testing::write_file(folder + "/text", text);
  const testing::Outcome outcome = testing::run_in_terminal(
      {"tokenizer", "encode", kReference + "gpt2.json", folder + "/text", "--out", folder + "/ids"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("encode: chunks of text [....................] 0 %, 0 of 2"), std::string::npos)
      << outcome.output;
}

TEST(TokenizerConfig, PutsASpaceBeforeTextsForTheClassesThatDo) {
  const testing::TempFolder folder;
  auto file = nlohmann::json::parse(testing::read_file(kReference + "gpt2.json"));
  folder.write("tokenizer.json", file.dump());
  const auto ids = [&folder](const std::string& type, bool adds, std::string_view text) {
    folder.write("tokenizer_config.json", nlohmann::json{{"tokenizer_class", type}, {"add_prefix_space", adds}}.dump());
    return ids_of(*open_tokenizer(folder.path()), text);
  };
  const std::vector<int32_t> with_space = ids("GPT2Tokenizer", false, " the"), plain = ids("", false, "the");
  ASSERT_NE(with_space, plain);
  EXPECT_EQ(ids("GPT2Tokenizer", true, "the"), with_space);
  for (const char* const type :
       {"Qwen2TokenizerFast", "RobertaTokenizer", "GPTNeoXTokenizerFast", "CodeGenTokenizer"}) {
    EXPECT_EQ(ids(type, true, "the"), with_space) << type;
  }
  EXPECT_EQ(ids("PreTrainedTokenizerFast", true, "the"), plain);
  file["pre_tokenizer"]["add_prefix_space"] = true;
  folder.write("tokenizer.json", file.dump());
  EXPECT_EQ(ids("GPT2Tokenizer", false, "the"), plain);
  EXPECT_EQ(ids("PreTrainedTokenizerFast", false, "the"), with_space);
}

TEST(TokenizerReference, SpecialTokensCanBeText) {
  const auto tokenizer = open_tokenizer(kReference + "gpt2.json");
  const auto end = tokenizer->id_of("<|endoftext|>");
  ASSERT_TRUE(end);
  EXPECT_EQ(ids_of(*tokenizer, "<|endoftext|>"), std::vector<int32_t>{*end});
  const std::vector<int32_t> as_text = ids_of(*tokenizer, "<|endoftext|>", {.special_tokens_as_text = true});
  EXPECT_GT(as_text.size(), 1u);
  EXPECT_EQ(tokenizer->decode(as_text), "<|endoftext|>");
}

TEST(TokenizerReference, TextsAreEncodedInParallel) {
  const auto tokenizer = open_tokenizer(kReference + "qwen.json");
  std::vector<std::string> texts;
  texts.reserve(100);
  for (int i = 0; i < 100; ++i) texts.push_back("text number " + std::to_string(i * i));
  std::vector<std::vector<int32_t>> ids(texts.size());
  parallel_for(std::ssize(texts),
               [&](int64_t i) { tokenizer->encode(texts[static_cast<size_t>(i)], ids[static_cast<size_t>(i)]); });
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(ids[i], ids_of(*tokenizer, texts[i]));
}

TEST(BpeTrainer, TheFileIsThatOfTheOriginal) {
  const std::string text = testing::read_file(kReference + "train.txt");
  for (const std::string pattern : {"gpt2", "llama3", "qwen"}) {
    const std::string file = fmt::format("{}trained_{}.json", kReference, pattern);
    const BpeTrainerOptions options{.vocab = 600, .pattern = pattern, .special_tokens = {"<|endoftext|>"}};
    const std::vector<std::string_view> texts = {text};
    EXPECT_EQ(to_tokenizer_json(train_bpe(texts, options), options), testing::read_file(file)) << pattern;
  }
}

TEST(BpeTrainer, LinesAndRarePairsAreThoseOfTheOriginal) {
  const std::string text = testing::read_file(kReference + "train.txt");
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    lines.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end;
  }
  const BpeTrainerOptions options{.vocab = 500, .special_tokens = {"<|endoftext|>"}, .min_frequency = 3};
  EXPECT_EQ(to_tokenizer_json(train_bpe(lines, options), options),
            testing::read_file(kReference + "trained_lines.json"));
}

}  // namespace
}  // namespace mantissa
