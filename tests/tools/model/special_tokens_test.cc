// Tokens around texts, which a tokenizer puts there: the beginning of a text.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/wrapped_text.h"
#include "tests/program/program.h"
#include "tools/config/data_paths.h"

namespace mantissa::testing {
namespace {

// The tokenizer's post-processor puts <|endoftext|>, token 0, in front of each text. A special token in a text counts,
// so texts that begin with it say the same without a post-processor.
constexpr const char* kBeginningTokenizer = "tests/tools/text/reference/llama3.json";
const std::string kSpoken = "the gradient of a loss sums half a word", kBeginMark = "<|endoftext|>";

class BegunTexts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = new SmallRun("special_tokens");
    std::filesystem::create_directories(folder() + "/tok");
    write_file(folder() + "/tok/tokenizer.json", read_file(kBeginningTokenizer));
    const Outcome made = run_program(
        0, {"tokenize", run_->data_path(), "--tokenizer", folder() + "/tok", "--out", folder() + "/tokens"});
    ASSERT_EQ(made.exit_code, 0) << made.output;
    run_->train(1, {"data.train=" + folder() + "/tokens", "data.format=tokens", "model.vocab=605", "model.context=64",
                    "data.tokenizer=" + folder() + "/tok", "precision.compute=fp32", "train.steps=20",
                    "train.sample_tokens=8", "train.sample_prompt=" + kSpoken});
    write_file(folder() + "/text", kSpoken);
    write_file(folder() + "/begun", kBeginMark + kSpoken);
  }
  static void TearDownTestSuite() { delete run_; }
  static std::string folder() { return run_->folder(); }
  static std::string output(const std::vector<std::string>& arguments) {
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }

  static SmallRun* run_;
};

SmallRun* BegunTexts::run_ = nullptr;

TEST_F(BegunTexts, BeginPromptsAsWithTransformers) {
  const auto text = [](const std::string& prompt, const std::vector<std::string>& more) {
    const std::string all =
        output(with({"generate", run_->run_dir(), "--prompt", prompt, "--tokens", "8", "--temperature", "0"}, more));
    EXPECT_TRUE(all.starts_with(prompt)) << all;
    return all.substr(prompt.size());
  };
  const std::string begun = text(kSpoken, {});
  EXPECT_EQ(begun, text(kBeginMark + kSpoken, {"--no-special-tokens"}));
  EXPECT_NE(text("", {}), "\n") << "an empty prompt is a text that begins";
  write_file(folder() + "/prompts.jsonl", nlohmann::json{{"prompt", kSpoken}}.dump());
  const std::string line = output(
      {"generate", run_->run_dir(), "--prompts", folder() + "/prompts.jsonl", "--tokens", "8", "--temperature", "0"});
  EXPECT_EQ(nlohmann::json::parse(line).at("text").get<std::string>() + "\n", begun);
}

TEST_F(BegunTexts, AreScoredFrom) {
  const auto score = [](const std::string& name, const std::vector<std::string>& more) {
    return output(with({"score", run_->run_dir(), folder() + name}, more));
  };
  const std::string begun = score("/text", {});
  EXPECT_EQ(begun, score("/begun", {"--no-special-tokens"}));
  const std::string raw = score("/text", {"--no-special-tokens"});
  EXPECT_EQ(std::ranges::count(begun, '\n'), std::ranges::count(raw, '\n') + 1) << "also the first token of the text";
  const auto evaluate = [](const std::string& name, const std::vector<std::string>& more) {
    const std::string file = folder() + "/result.json";
    output(with({"evaluate", run_->run_dir(), "--text", folder() + name, "--json", file}, more));
    return nlohmann::json::parse(read_file(file)).at(0);
  };
  const nlohmann::json one = evaluate("/text", {}), other = evaluate("/begun", {"--no-special-tokens"});
  EXPECT_EQ(one.at("loss"), other.at("loss"));
  EXPECT_EQ(one.at("tokens"), std::ranges::count(begun, '\n'));
  EXPECT_EQ(one.at("bytes"), kSpoken.size());
  EXPECT_EQ(evaluate("/text", {"--no-special-tokens"}).at("tokens"), std::ranges::count(raw, '\n'));
}

TEST_F(BegunTexts, BeginSamplesOfATraining) {
  const auto samples = run_->records("sample");
  ASSERT_FALSE(samples.empty());
  const std::string generated = output({"generate", run_->run_dir(), "--prompt", kSpoken, "--tokens", "8"});
  const std::string text = generated.substr(kSpoken.size(), generated.size() - kSpoken.size() - 1);
  EXPECT_EQ(samples.back().at("text"), legible(text)) << "of the same seed, temperature and filters";
}

// Marks of turns are special tokens.
TEST_F(BegunTexts, CannotBeConversationsIfSpecialTokensAreText) {
  const std::string tokenizer = carried_folder(run_->run_dir()), config = tokenizer + "/tokenizer_config.json";
  const std::vector<std::string> encode = {"tokenizer", "encode", tokenizer, "--text", kBeginMark};
  const std::string as_text = output(with(encode, {"--special-tokens-as-text"}));
  EXPECT_NE(output(encode), as_text);
  write_file(config, R"({"split_special_tokens": true})");
  EXPECT_EQ(output(encode), as_text);
  write_file(folder() + "/chat.jsonl", R"({"messages": [{"role": "assistant", "content": "a"}]})");
  for (const Outcome& refused :
       {run_program(0, {"generate", run_->run_dir(), "--chat", "a", "--chat-template", "chatml"}),
        run_program(0, {"tokenize", folder() + "/chat.jsonl", "--tokenizer", tokenizer, "--chat", "chatml", "--out",
                        folder() + "/chat"})}) {
    EXPECT_TRUE(refused.exit_code == 2 || refused.exit_code == 3) << refused.output;
    EXPECT_NE(refused.output.find("has split_special_tokens: true, which makes the marks of turns plain text"),
              std::string::npos)
        << refused.output;
  }
  std::filesystem::remove(config);
}

}  // namespace
}  // namespace mantissa::testing
