// `mantissa generate`: prompts of files, conversations and stop strings.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <sstream>

#include "tests/program/program.h"
#include "tests/tools/model/hf_reference.h"
#include "tools/text/chat/chat_template.h"

namespace mantissa::testing {
namespace {

class GenerateOptions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = new SmallRun("generate_options");
    run_->train(1, {"train.steps=60", "model.context=128"});
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
  // The rest of the line.
  static std::string line_at(const std::string& output, size_t at) {
    return output.substr(at, output.find('\n', at) - at);
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
  for (const char* const name : {"prompts.jsonl", "prompts.ndjson", "prompts.json", "PROMPTS.JSONL"}) {
    EXPECT_EQ(text({"--prompts", file(name, "\xef\xbb\xbf" + lines)}), output) << name;
  }
  EXPECT_EQ(text({"--prompts", file("marked.txt", "\xef\xbb\xbf" + plain)}), output);
  EXPECT_EQ(run_shell("gzip -kf " + file("packed.jsonl", lines)).exit_code, 0);
  EXPECT_EQ(text({"--prompts", run_->folder() + "/packed.jsonl.gz"}), output);
  EXPECT_NE(text({"--prompts", file("gaps.txt", "\na\n \nb\n\n")}).find("gaps.txt: 2 blank lines give no output"),
            std::string::npos);
  const std::string other = text({"--prompts", file("lines.txt", lines)});
  EXPECT_NE(other.find("lines.txt: it starts with a JSON object that has 'prompt'; each line is a prompt; name files"),
            std::string::npos)
      << other;
  const std::string chats = text({"--prompts", file("chats.txt", "{\"messages\": []}\n")});
  EXPECT_NE(chats.find("chats.txt: it starts with a JSON object that has 'messages'"), std::string::npos) << chats;
  const std::string binary = text({"--prompts", file("big.pkl", std::string("\x80\x04\0\0\0\0a\n", 8))});
  EXPECT_NE(binary.find("big.pkl: "), std::string::npos) << binary;
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

// The model's context is 128, and its tokens are bytes.
TEST_F(GenerateOptions, APromptLongerThanTheContextIsAWarning) {
  const std::string prompt(130, 'a'), tail = prompt.substr(2);
  const std::string cut = text({"--prompts", file("long.txt", "b\n" + prompt + "\n")});
  EXPECT_NE(cut.find("long.txt:2: it has 130 tokens, and the model's context 128: 2 tokens at its start are left out"),
            std::string::npos)
      << cut;
  const auto line = nlohmann::json::parse(line_at(cut, cut.rfind("{\"prompt\"")));
  EXPECT_TRUE(text({"--prompt", tail}).starts_with(tail + line.at("text").get<std::string>() + "\n"));
  EXPECT_NE(text({"--prompt", prompt}).find("--prompt: it has 130 tokens"), std::string::npos);
  expect_refused({"--prompt", prompt, "--no-truncate"}, 2, "--prompt: it has 130 tokens: expected at most 128");
}

// The window of the model moves once, by 64 tokens and the drawn one in front of it.
TEST_F(GenerateOptions, ATextThatOutgrowsTheContextIsAWarning) {
  const std::string prompt(120, 'a'), fits(99, 'b'),
      filled = "with its text it has filled the model's context of 128 tokens",
      moved = filled + ": at its end, the model no longer saw the first 65 tokens; --no-truncate ends a text there";
  const std::string whole = text({"--prompt", prompt}), cut = text({"--prompt", prompt, "--no-truncate"});
  EXPECT_NE(whole.find("warning: --prompt: " + moved), std::string::npos) << whole;
  EXPECT_NE(cut.find("warning: --prompt: " + filled + ": the text ends there"), std::string::npos) << cut;
  EXPECT_EQ(text({"--prompt", fits}).find(filled), std::string::npos) << "the last token sees all others";
  EXPECT_NE(text({"--chat", std::string(30, 'a'), "--system", "b", "--chat-template", "chatml"})
                .find("tokens, any system message among them;"),
            std::string::npos);

  const std::string lines = file("outgrown.txt", fits + "\n" + prompt + "\n" + prompt + "\n");
  const std::string all = text({"--prompts", lines}), ended = text({"--prompts", lines, "--no-truncate"});
  EXPECT_NE(all.find("outgrown.txt:2: " + filled + ", as have 2 texts in all: at its end"), std::string::npos) << all;
  EXPECT_EQ(all.find("warning"), all.rfind("warning")) << all;
  const auto first = nlohmann::json::parse(line_at(ended, 0)),
             second = nlohmann::json::parse(line_at(ended, ended.find('\n') + 1));
  EXPECT_EQ(first.at("end"), "length");
  EXPECT_EQ(second.at("end"), "context");
  const std::string kept = prompt + second.at("text").get<std::string>();
  EXPECT_EQ(kept.size(), 129u) << "the last token is drawn from a full context";
  EXPECT_TRUE(cut.starts_with(kept + "\n")) << cut;
  EXPECT_TRUE(whole.starts_with(kept)) << whole;
}

TEST_F(GenerateOptions, AChatLongerThanTheContextLosesItsOldestTurns) {
  const auto message = [](const char* role, const std::string& content) {
    return nlohmann::json{{"role", role}, {"content", content}};
  };
  const auto answer = [&](const std::string& name, const nlohmann::json& messages,
                          const std::vector<std::string>& more = {}) {
    return generate(with({"--messages", file(name, messages.dump()), "--chat-template", "chatml"}, more));
  };
  const nlohmann::json system = message("system", "brief"), last = message("user", "loss?"),
                       whole = {system, message("user", "long enough"), message("assistant", "yes"), last},
                       rest = {system, last};
  const Outcome cut = answer("whole.json", whole), fits = answer("rest.json", rest);
  EXPECT_EQ(fits.exit_code, 0) << fits.output;
  const std::string rendered =
      "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nlong enough<|im_end|>\n"
      "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nloss?<|im_end|>\n<|im_start|>assistant\n";
  const std::string kept =
      "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nloss?<|im_end|>\n<|im_start|>assistant\n";
  ASSERT_GT(rendered.size(), 128u);
  ASSERT_LE(kept.size(), 128u);
  EXPECT_NE(cut.output.find("it has " + std::to_string(rendered.size()) + " tokens, and the model's context 128: " +
                            std::to_string(rendered.size() - kept.size()) + " tokens of its oldest turns are left out"),
            std::string::npos)
      << cut.output;
  EXPECT_TRUE(cut.output.ends_with(fits.output)) << "the system message and the last turn stay";
  const Outcome refused = answer("whole.json", whole, {"--no-truncate"});
  EXPECT_EQ(refused.exit_code, 3) << refused.output;
  EXPECT_NE(refused.output.find("whole.json: it has "), std::string::npos) << refused.output;
  // No turn can be left out.
  EXPECT_NE(answer("one.json", nlohmann::json::array({message("user", std::string(200, 'a'))}))
                .output.find("tokens at its start are left out"),
            std::string::npos);
  EXPECT_EQ(answer("system.json", nlohmann::json::array({message("system", std::string(200, 'a'))})).exit_code, 0);
}

TEST_F(GenerateOptions, WhatDoesNotFitIsRefused) {
  expect_refused({}, 2, "give one of --prompt, --chat, --messages and --prompts, got 0 of them");
  expect_refused({"--prompt", "a", "--chat", "b"}, 2, "got 2 of them");
  for (const char* const setting : {"model.vocab=300", "model.width=16", "model.layers=5", "model.lora.rank=2"}) {
    expect_refused({setting, "--prompt", "a"}, 2, "its weights are of another model (saved -> now):");
  }
  expect_refused({"--prompt", "a", "--system", "b"}, 2, "are for conversations: give --chat");
  expect_refused({"--prompts", file("plain.txt", "a\n"), "--system", "b"}, 2, "plain.txt has none");
  expect_refused({"--prompt", "a", "--batch", "2"}, 2, "--batch requires --prompts");
  expect_refused({"--chat", "a"}, 3, "name one with --chat-template (chatml, qwen, llama3)");
  expect_refused({"--chat", "a", "--chat-template", "vicuna"}, 2,
                 "--chat-template: vicuna not in {chatml,qwen,llama3}");
  expect_refused({"--prompt", "a", "--top-p", "1.5"}, 2, "top-p");
  expect_refused({"--prompt", "a", "--repetition-penalty", "0"}, 2, "the repetition penalty");
  expect_refused({"--prompt", ""}, 2, "--prompt: the prompt must hold at least one token");
  expect_refused({"--prompts", run_->folder() + "/none.txt"}, 3, "none.txt: cannot read the file");
  expect_refused({"--prompts", file("empty.txt", "\n\n")}, 3, "the file has no prompt");
  expect_refused({"--prompts", file("bad.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\"\n")}, 3,
                 "bad.jsonl:2: not valid JSON");
  expect_refused({"--prompts", file("key.jsonl", "{\"text\": \"a\"}\n")}, 3,
                 "key.jsonl:1: the key 'prompt' is missing");
  expect_refused({"--prompts", file("both.jsonl", "{\"prompt\": \"a\", \"messages\": []}\n")}, 3,
                 "both.jsonl:1: it has both 'prompt' and 'messages'");
  expect_refused({"--messages", file("role.json", R"([{"role": "tool", "content": ""}])"), "--chat-template", "chatml"},
                 3, "got 'tool'");
}

TEST(EndOfText, IsThatOfConfigJsonWithoutAGenerationConfig) {
  const std::string folder = fresh_folder("end_of_config");
  for (const char* const name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(hf_folder("llama3") + "/" + name, folder + "/" + name);
  }
  const std::vector<std::string> command = {"generate", folder, "precision.compute=fp32", "--temperature", "0"};
  const std::string text = run_program(0, with(command, {"--prompt", "3 2 5", "--tokens", "1"})).output;
  ASSERT_TRUE(text.starts_with("3 2 5 ")) << text;
  write_file(folder + "/prompts.txt", "3 2 5\n");
  nlohmann::json config = nlohmann::json::parse(read_file(folder + "/config.json"));
  const auto end_with = [&](const nlohmann::json& eos, const std::string& file) {
    config["eos_token_id"] = eos;
    write_file(folder + "/" + file, config.dump());
    const Outcome outcome = run_program(0, with(command, {"--prompts", folder + "/prompts.txt", "--tokens", "1"}));
    return nlohmann::json::parse(outcome.output).at("end").get<std::string>();
  };
  const int64_t drawn = std::stoll(text.substr(6)), other = (drawn + 1) % 40;
  EXPECT_EQ(end_with(other, "config.json"), "length");
  EXPECT_EQ(end_with({other, drawn}, "config.json"), "token");
  EXPECT_EQ(end_with(other, "generation_config.json"), "length");
  // -1 and ids beyond every vocabulary end no text, as in transformers.
  EXPECT_EQ(end_with(-1, "generation_config.json"), "length");
  EXPECT_EQ(end_with({-1, int64_t{1} << 40, drawn}, "generation_config.json"), "token");
  EXPECT_EQ(end_with({-1, other}, "generation_config.json"), "length");
}

// Memory and dry passes are those of the texts: this context would take them gigabytes and minutes.
TEST(LongContext, TakesWhatItsTextsTake) {
  const std::string folder = fresh_folder("long_context");
  std::filesystem::copy(hf_folder("llama3") + "/model.safetensors", folder + "/model.safetensors");
  nlohmann::json config = nlohmann::json::parse(read_file(hf_folder("llama3") + "/config.json"));
  config["max_position_embeddings"] = 1'000'000'000;
  write_file(folder + "/config.json", config.dump());
  const auto text = [](const std::string& model) {
    const Outcome outcome =
        run_program(0, {"generate", model, "precision.compute=fp32", "--prompt", "3 2 5", "--tokens", "12"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_EQ(text(folder), text(hf_folder("llama3")));
}

// Conversations with a tokenizer, tokenized in two templates.
class Conversations {
 public:
  explicit Conversations(const std::string& name) : folder_(fresh_folder(name)) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]})"
              "\n";
    }
    write_file(lines(), text);
    run_well({"tokenizer", "train", lines(), "--vocab", "300", "--special", "<|endoftext|>", "--special",
              "<|im_start|>", "--special", "<|im_end|>", "--out", folder_ + "/tok"});
    for (const char* const chat : {"qwen", "chatml"}) {
      run_well({"tokenize", lines(), "--chat", chat, "--tokenizer", folder_ + "/tok", "--out", tokens(chat)});
    }
  }
  std::string folder() const { return folder_; }
  std::string lines() const { return folder_ + "/chat.jsonl"; }
  std::string tokens(const std::string& chat) const { return folder_ + "/tokens_" + chat; }
  // Trains by the settings of a file, with more of them.
  std::string train(const std::string& yaml, const std::vector<std::string>& settings) const {
    write_file(folder_ + "/c.yaml", yaml);
    return run_well(with({"train", folder_ + "/c.yaml", "data.format=tokens", "data.packing=documents",
                          "data.tokenizer=" + folder_ + "/tok", "train.global_batch=2", "train.micro_batch=2",
                          "train.eval_interval=0", "train.sample_tokens=0"},
                         settings));
  }
  static std::string run_well(const std::vector<std::string>& arguments) {
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }

 private:
  std::string folder_;
};

constexpr const char* kChatModel = "model: {layers: 1, width: 32, heads: 2, context: 128, vocab: 304}\n";

// The base knows no template: the run has that of the conversations, and so has the export.
TEST(LearntConversations, LeaveTheirTemplateAndTheEndOfATurn) {
  const Conversations chats("learnt_conversations");
  const std::string folder = chats.folder(), run = folder + "/run";
  chats.train(kChatModel, {"train.steps=2", "data.train=" + chats.tokens("qwen"), "train.run_dir=" + run});
  Conversations::run_well({"generate", run, "--chat", "hi", "--tokens", "5"});
  Conversations::run_well({"export", run, "--out", folder + "/exported"});
  EXPECT_EQ(read_file(folder + "/exported/chat_template.jinja"), chat_template("qwen").jinja());
  const auto generation = nlohmann::json::parse(read_file(folder + "/exported/generation_config.json"));
  EXPECT_EQ(generation, (nlohmann::json{{"eos_token_id", nlohmann::json::array({0, 2})}}));

  // Adapters that learn from the exported model go with the same files, as PEFT and TRL write them.
  const std::string lora = folder + "/lora", peft = folder + "/peft";
  chats.train("model: {context: 128, lora: {rank: 2}}\n",
              {"train.steps=2", "data.train=" + chats.tokens("qwen"), "train.run_dir=" + lora,
               "train.init_from=" + folder + "/exported"});
  Conversations::run_well({"export", lora, "--out", peft, "--format", "peft"});
  for (const char* const name : {"chat_template.jinja", "generation_config.json", "tokenizer.json"}) {
    EXPECT_EQ(read_file(peft + "/" + name), read_file(folder + "/exported/" + name)) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(peft + "/config.json"));

  // Settings with numbers that JSON has not are left out.
  write_file(folder + "/exported/generation_config.json", R"({"eos_token_id": 0, "temperature": NaN, "top_k": 7})");
  chats.train("model: {context: 128, lora: {rank: 2}}\n",
              {"train.steps=2", "data.train=" + chats.tokens("qwen"), "train.run_dir=" + folder + "/unusual",
               "train.init_from=" + folder + "/exported"});
  EXPECT_EQ(nlohmann::json::parse(read_file(folder + "/unusual/huggingface/generation_config.json")),
            (nlohmann::json{{"eos_token_id", nlohmann::json::array({0, 2})}, {"top_k", 7}}));
}

// A resumed run takes the template of its present data, and its files into another run folder.
TEST(LearntConversations, ResumedRunsKeepTheTemplateOfTheirData) {
  const Conversations chats("resumed_conversations");
  const std::string folder = chats.folder(), run = folder + "/run", next = folder + "/next";
  const auto kept = [](const std::string& path) { return read_file(path + "/huggingface/chat_template.jinja"); };
  chats.train(kChatModel, {"train.steps=2", "data.train=" + chats.tokens("qwen"), "train.run_dir=" + run});
  EXPECT_EQ(kept(run), chat_template("qwen").jinja());
  const std::string same = Conversations::run_well({"train", run, "train.steps=3"});
  EXPECT_EQ(same.find("chat template"), std::string::npos) << same;
  const std::string other =
      Conversations::run_well({"train", run, "train.steps=4", "data.train=" + chats.tokens("chatml")});
  EXPECT_EQ(kept(run), chat_template("chatml").jinja());
  EXPECT_NE(other.find("huggingface/chat_template.jinja: now the chat template of "), std::string::npos) << other;
  Conversations::run_well({"train", run, "train.steps=5", "train.run_dir=" + next, "checkpoint.resume=" + run});
  EXPECT_EQ(kept(next), kept(run));
  EXPECT_EQ(read_file(next + "/huggingface/tokenizer.json"), read_file(run + "/huggingface/tokenizer.json"));
  Conversations::run_well({"generate", next, "--chat", "hi", "--tokens", "5"});
  const std::string second = chats.folder() + "/other";
  Conversations::run_well({"tokenizer", "train", chats.lines(), "--vocab", "301", "--special", "<|endoftext|>",
                           "--special", "<|im_start|>", "--special", "<|im_end|>", "--special", "<|x|>", "--out",
                           second});
  Conversations::run_well({"train", next, "train.steps=6", "data.tokenizer=" + second});
  EXPECT_EQ(read_file(next + "/huggingface/tokenizer.json"), read_file(second + "/tokenizer.json"));
}

// configs/reference.yaml advises to pad model.vocab: 257 tokens in a model of 304.
TEST(PaddedVocabulary, SamplesAndTextsHaveTokensOfTheTokenizerOnly) {
  const std::string folder = fresh_folder("padded_vocabulary"), run = folder + "/run";
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the cat sat on the mat and the dog ran to the cat\n";
  write_file(folder + "/text.txt", text);
  write_file(
      folder + "/c.yaml",
      "model: {layers: 1, width: 32, heads: 2, context: 32, vocab: 304}\n"
      "train: {steps: 2, global_batch: 2, micro_batch: 2, eval_interval: 0, sample_interval: 1, sample_tokens: 200}\n");
  const auto run_well = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  run_well({"tokenizer", "train", folder + "/text.txt", "--vocab", "257", "--special", "<|endoftext|>", "--out",
            folder + "/tok"});
  run_well({"tokenize", folder + "/text.txt", "--tokenizer", folder + "/tok", "--out", folder + "/tokens"});
  run_well({"train", folder + "/c.yaml", "data.train=" + folder + "/tokens", "data.format=tokens",
            "data.tokenizer=" + folder + "/tok", "train.run_dir=" + run});
  run_well({"generate", run, "--prompt", "the cat", "--tokens", "200", "--temperature", "10", "--top-k", "0"});
  // Without a tokenizer, a byte model has 256 texts.
  run_well({"train", folder + "/c.yaml", "data.train=" + folder + "/text.txt", "train.run_dir=" + run + "_bytes"});
  EXPECT_EQ(run_program(0, {"generate", run + "_bytes", "--prompt", "the cat"}).exit_code, 0);
}

}  // namespace
}  // namespace mantissa::testing
