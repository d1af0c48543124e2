// `mantissa generate`: prompts of files, conversations and stop strings.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

class GenerateOptions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = new SmallRun("generate_options");
    run_->train(1, {"train.steps=60"});
  }
  static void TearDownTestSuite() { delete run_; }

  static Outcome generate(std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", run_->run_dir(), "--tokens", "30", "--temperature", "0"});
    return run_program(0, options);
  }
  static std::string text(const std::vector<std::string>& options) {
    const Outcome outcome = generate(options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }
  static std::string file(const std::string& name, const std::string& content) {
    const std::string path = run_->folder() + "/" + name;
    write_file(path, content);
    return path;
  }
  static void expect_refused(const std::vector<std::string>& options, int exit_code, const std::string& message) {
    const Outcome outcome = generate(options);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << outcome.output;
  }

  static SmallRun* run_;
};

SmallRun* GenerateOptions::run_ = nullptr;

TEST_F(GenerateOptions, AFileOfPromptsGivesALineEachInItsOrder) {
  const std::vector<std::string> prompts = {"the gra", "a", "loss sc", "of the sca", "t"};
  std::string plain, lines;
  for (const std::string& prompt : prompts) {
    plain += prompt + "\n";
    lines += nlohmann::json{{"prompt", prompt}}.dump() + "\n\n";
  }
  const std::string output = text({"--prompts", file("prompts.txt", plain), "--batch", "2"});
  std::istringstream stream(output);
  std::string line;
  for (const std::string& prompt : prompts) {
    ASSERT_TRUE(std::getline(stream, line));
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json.at("prompt"), prompt);
    EXPECT_EQ(json.at("end"), "length");
    EXPECT_EQ(text({"--prompt", prompt}), prompt + json.at("text").get<std::string>() + "\n");
  }
  EXPECT_FALSE(std::getline(stream, line));
  EXPECT_EQ(text({"--prompts", file("prompts.jsonl", lines)}), output);
}

TEST_F(GenerateOptions, AStopStringEndsTheText) {
  const std::string whole = text({"--prompt", "the gra"});
  const std::string stop = whole.substr(20, 4);
  const std::string before = whole.substr(0, whole.find(stop, 7));
  EXPECT_EQ(text({"--prompt", "the gra", "--stop", "zzz", "--stop", stop}), before + "\n");
  const auto line =
      nlohmann::json::parse(text({"--prompts", file("one.txt", "the gra\n"), "--stop", stop, "--stop", "zzz"}));
  EXPECT_EQ("the gra" + line.at("text").get<std::string>(), before);
  EXPECT_EQ(line.at("end"), "stop");
}

TEST_F(GenerateOptions, AConversationIsAnsweredInItsTemplate) {
  const std::string rendered =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nloss?<|im_end|>\n<|im_start|>assistant\n";
  const std::string continued = text({"--prompt", rendered}), answer = continued.substr(rendered.size());
  EXPECT_EQ(text({"--chat", "loss?", "--system", "Be brief.", "--chat-template", "chatml"}), answer);
  const nlohmann::json messages = {{{"role", "system"}, {"content", "Be brief."}},
                                   {{"role", "user"}, {"content", "loss?"}}};
  EXPECT_EQ(text({"--messages", file("messages.json", messages.dump()), "--chat-template", "chatml"}), answer);
  const std::string lines = nlohmann::json{{"messages", messages}}.dump();
  const auto line = nlohmann::json::parse(text({"--prompts", file("chat.jsonl", lines), "--chat-template", "chatml"}));
  EXPECT_EQ(line.at("text").get<std::string>() + "\n", answer);
  EXPECT_EQ(line.at("prompt"), rendered);
}

TEST_F(GenerateOptions, WhatDoesNotFitIsRefused) {
  expect_refused({}, 2, "give one of --prompt, --chat, --messages and --prompts, got 0 of them");
  expect_refused({"--prompt", "a", "--chat", "b"}, 2, "got 2 of them");
  expect_refused({"--prompt", "a", "--system", "b"}, 2, "are for conversations: give --chat");
  expect_refused({"--prompts", file("plain.txt", "a\n"), "--system", "b"}, 2, "plain.txt has none");
  expect_refused({"--prompt", "a", "--batch", "2"}, 2, "--batch requires --prompts");
  expect_refused({"--chat", "a"}, 3, "name one with --chat-template (chatml, qwen, llama3)");
  expect_refused({"--chat", "a", "--chat-template", "vicuna"}, 2,
                 "--chat-template: vicuna not in {chatml,qwen,llama3}");
  expect_refused({"--prompt", "a", "--top-p", "1.5"}, 2, "top-p");
  expect_refused({"--prompt", "a", "--repetition-penalty", "0"}, 2, "the repetition penalty");
  expect_refused({"--prompt", ""}, 2, "--prompt: the prompt must hold at least one token");
  expect_refused({"--prompts", run_->folder() + "/none.txt"}, 3, "none.txt: cannot be read");
  expect_refused({"--prompts", file("empty.txt", "\n\n")}, 3, "the file has no prompt");
  expect_refused({"--prompts", file("bad.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\"\n")}, 3,
                 "bad.jsonl:2: not valid JSON");
  expect_refused({"--prompts", file("key.jsonl", "{\"text\": \"a\"}\n")}, 3,
                 "key.jsonl:1: the key 'prompt' is missing");
  expect_refused({"--messages", file("role.json", R"([{"role": "tool", "content": ""}])"), "--chat-template", "chatml"},
                 3, "got 'tool'");
}

}  // namespace
}  // namespace mantissa::testing
