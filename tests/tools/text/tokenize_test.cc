// `mantissa tokenizer` and `mantissa tokenize` as a user meets them.
#include <gtest/gtest.h>

#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>

#include <fmt/core.h>

#include "core/data/token_data.h"
#include "core/data/token_shard.h"
#include "core/io/json_node.h"
#include "tests/program/program.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa::testing {
namespace {

namespace fs = std::filesystem;

const std::string kTokenizer = "tests/tools/text/reference/gpt2.json";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<int32_t> encoded(const std::vector<std::string>& texts) {
  const auto tokenizer = open_tokenizer(kTokenizer);
  std::vector<int32_t> ids;
  for (const std::string& text : texts) {
    tokenizer->encode(text, ids);
    ids.push_back(*tokenizer->id_of("<|endoftext|>"));
  }
  return ids;
}

std::vector<int32_t> tokens_in(const std::string& folder, int64_t vocab) {
  const TokenData data({.files = {folder + "/*.bin"}, .layout = TokenLayout::kLlmc, .vocab = vocab});
  std::vector<int32_t> ids(static_cast<size_t>(data.tokens()));
  data.read(0, ids);
  return ids;
}

std::string compressed(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST(TokenizerVerbs, ATrainedTokenizerEncodesAndDecodes) {
  const std::string folder = fresh_folder("tokenizer");
  const std::string text = read_file("tests/tools/text/reference/train.txt");
  fs::create_directories(folder + "/text");
  write_file(folder + "/text/a.txt", text);
  const Outcome trained = run_program(0, {"tokenizer", "train", folder + "/text", "--vocab", "600", "--special",
                                          "<|endoftext|>", "--out", folder + "/made"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_TRUE(has(trained.output, "trained 600 tokens with 343 merges on 0.0 MB in ")) << trained.output;
  EXPECT_TRUE(read_file(folder + "/made/tokenizer.json") == read_file("tests/tools/text/reference/trained_gpt2.json"));
  const Outcome lines =
      run_program(0, {"tokenizer", "train", folder + "/text/a.txt", "--vocab", "500", "--by-lines", "--special",
                      "<|endoftext|>", "--min-frequency", "3", "--out", folder + "/lines"});
  EXPECT_TRUE(read_file(folder + "/lines/tokenizer.json") == read_file("tests/tools/text/reference/trained_lines.json"))
      << lines.output;

  const Outcome shown = run_program(0, {"tokenizer", "show", folder + "/made"});
  EXPECT_TRUE(has(shown.output, "made: byte-level BPE, 600 tokens\n")) << shown.output;
  EXPECT_TRUE(has(shown.output, "end of text:   0 <|endoftext|>\n")) << shown.output;
  const Outcome ids = run_program(0, {"tokenizer", "encode", folder + "/made", "--text", "The loss <|endoftext|>"});
  EXPECT_TRUE(ids.output.ends_with(" 0\n")) << ids.output;
  std::vector<std::string> words = {"tokenizer", "decode", folder + "/made"};
  std::istringstream numbers(ids.output);
  for (std::string number; numbers >> number;) words.push_back(number);
  EXPECT_EQ(run_program(0, words).output, "The loss <|endoftext|>\n");
  words.emplace_back("--skip-special-tokens");
  EXPECT_EQ(run_program(0, words).output, "The loss \n");

  const std::string file = folder + "/text/a.txt", output = folder + "/ids";
  const Outcome written = run_program(0, {"tokenizer", "encode", folder + "/made", file, "--out", output});
  EXPECT_TRUE(has(written.output, " MB/s, ")) << written.output;
  std::vector<int32_t> expected;
  open_tokenizer(folder + "/made")->encode(text, expected);
  EXPECT_EQ(fs::file_size(output), expected.size() * sizeof(int32_t));
}

TEST(TokenizerVerbs, FilesAfterASpecialTokenAreFiles) {
  const std::string folder = fresh_folder("tokenizer_words");
  write_file(folder + "/a.txt", "hello hello");
  write_file(folder + "/b.txt", "world world");
  const Outcome trained = run_program(0, {"tokenizer", "train", "--vocab", "270", "--out", folder + "/made",
                                          "--special", "<e>", folder + "/a.txt", folder + "/b.txt"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_FALSE(has(read_file(folder + "/made/tokenizer.json"), "a.txt"));
}

TEST(TokenizerVerbs, MistakesAreNamed) {
  const std::string folder = fresh_folder("tokenizer_mistakes");
  write_file(folder + "/a.txt", "text");
  const Outcome small = run_program(
      0, {"tokenizer", "train", folder + "/a.txt", "--vocab", "256", "--special", "<e>", "--out", folder + "/made"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_TRUE(has(small.output, "the vocabulary needs 257 tokens")) << small.output;
  EXPECT_FALSE(fs::exists(folder + "/made"));
  const Outcome few =
      run_program(0, {"tokenizer", "train", folder + "/a.txt", "--vocab", "300", "--out", folder + "/made"});
  EXPECT_EQ(few.exit_code, 0);
  EXPECT_TRUE(has(few.output, "no more pairs to merge: 259 tokens instead of 300")) << few.output;
  const std::string first = read_file(folder + "/made/tokenizer.json");
  const Outcome again =
      run_program(0, {"tokenizer", "train", folder + "/a.txt", "--vocab", "257", "--out", folder + "/made"});
  EXPECT_EQ(again.exit_code, 2) << again.output;
  EXPECT_TRUE(has(again.output, "made: ")) << again.output;
  EXPECT_EQ(read_file(folder + "/made/tokenizer.json"), first);
  EXPECT_FALSE(fs::exists(folder + "/made.partial"));
  const Outcome nothing = run_program(0, {"tokenizer", "encode", folder + "/made"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(has(nothing.output, "name a file, or give --text")) << nothing.output;
  for (const std::string id : {"259", "-1"}) {
    const Outcome beyond = run_program(0, {"tokenizer", "decode", folder + "/made", id});
    EXPECT_TRUE(beyond.exit_code == 2 && has(beyond.output, "ids: token " + id + " is not in the")) << beyond.output;
  }
}

TEST(Tokenize, TextAndLinesBecomeTokenFiles) {
  const std::string folder = fresh_folder("tokenize");
  fs::create_directories(folder + "/text");
  write_file(folder + "/text/1.txt", "The first text.");
  write_file(folder + "/text/2.jsonl",
             "{\"text\": \"A second \\u00e9\"}\n\n{\"id\": 1, \"text\": \"\"}\r\n{\"text\": \"third\"}");
  std::string many;
  std::vector<std::string> texts = {"The first text.", "A second \u00e9", "third"};
  for (int i = 0; i < 300; ++i) {
    texts.push_back("line " + std::to_string(i * i) + " of many");
    many += "{\"text\": \"" + texts.back() + "\"}\n";
  }
  write_file(folder + "/text/3.jsonl.zst",
             compressed(many.substr(0, many.size() / 2)) + compressed(many.substr(many.size() / 2)));
  const std::vector<std::string> command = {"tokenize", folder + "/text", "--tokenizer", kTokenizer, "--out"};
  const Outcome one = run_program(0, with(command, {folder + "/one"}));
  EXPECT_EQ(one.exit_code, 0) << one.output;
  EXPECT_TRUE(has(one.output, "tokens of 303 documents")) << one.output;
  EXPECT_TRUE(has(one.output, "1 empty documents were left out")) << one.output;
  EXPECT_EQ(tokens_in(folder + "/one", 600), encoded(texts));

  const Outcome several = run_program(0, with(command, {folder + "/several/", "--shard-tokens", "1000"}));
  EXPECT_EQ(several.exit_code, 0) << several.output;
  EXPECT_EQ(tokens_in(folder + "/several", 600), encoded(texts));
  EXPECT_EQ(fs::file_size(folder + "/several/tokens_000000.bin"), 1024u + 2000u);
  EXPECT_TRUE(fs::exists(folder + "/several/tokens_000001.bin"));

  const Outcome again = run_program(0, with(command, {folder + "/one"}));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_TRUE(has(again.output, "one: already exists")) << again.output;
}

TEST(Tokenize, ShowsHowFarItIsInATerminal) {
  const std::string folder = fresh_folder("tokenize_terminal");
  fs::create_directories(folder + "/text");
  std::string text;
  while (text.size() < 1'000'000) text += "a line of text\n";
  for (const char* const name : {"a", "b", "c"}) write_file(folder + "/text/" + name + ".txt", text);
  const Outcome outcome =
      run_in_terminal({"tokenize", folder + "/text", "--tokenizer", kTokenizer, "--out", folder + "/out"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "tokenize: MB [....................] 0 %, 0 of 3")) << outcome.output;
}

TEST(Tokenize, ALargeVocabularyIsWrittenWithFourBytes) {
  const std::string folder = fresh_folder("tokenize_large");
  // The end of text is token 100257.
  std::string ranks;
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int byte = 0; byte < 256; ++byte) {
    ranks += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '=', ' '};
    ranks += std::to_string(byte) + "\n";
  }
  write_file(folder + "/cl100k.tiktoken", ranks);
  write_file(folder + "/a.txt", "abc");
  const Outcome outcome = run_program(
      0, {"tokenize", folder + "/a.txt", "--tokenizer", folder + "/cl100k.tiktoken", "--out", folder + "/tokens"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(tokens_in(folder + "/tokens", 100277), (std::vector<int32_t>{'a', 'b', 'c', 100257}));
}

TEST(Tokenize, BadLinesAreNamedAndNothingIsLeft) {
  const std::string folder = fresh_folder("tokenize_bad");
  write_file(folder + "/a.jsonl",
             "{\"text\": \"good\"}\n{\"text\": \"cut off\n[1]\n{\"text\": 7}\n{\"other\": \"x\"}\n");
  const std::vector<std::string> command = {"tokenize", folder + "/a.jsonl", "--tokenizer", kTokenizer,
                                            "--out",    folder + "/out"};
  const Outcome strict = run_program(0, command);
  EXPECT_EQ(strict.exit_code, 3);
  EXPECT_TRUE(has(strict.output, "a.jsonl:2: not valid JSON: {\"text\": \"cut off")) << strict.output;
  EXPECT_TRUE(has(strict.output, "--bad-lines N skips up to N of them")) << strict.output;
  EXPECT_FALSE(fs::exists(folder + "/out"));
  EXPECT_FALSE(fs::exists(folder + "/out.mantissa-partial"));
  EXPECT_EQ(run_program(0, with(command, {"--bad-lines", "3"})).exit_code, 3);
  const Outcome lenient = run_program(0, with(command, {"--bad-lines", "4"}));
  EXPECT_EQ(lenient.exit_code, 0) << lenient.output;
  EXPECT_TRUE(has(lenient.output, "a.jsonl:5: expected an object with the string 'text'")) << lenient.output;
  EXPECT_TRUE(has(lenient.output, "4 lines were skipped")) << lenient.output;
  EXPECT_EQ(tokens_in(folder + "/out", 600), encoded({"good"}));

  const std::string packed = compressed(std::string("{\"text\": \"a text that is long enough\"}\n"));
  for (const auto& [name, bytes, message] : std::vector<std::array<std::string, 3>>{
           {"cut.jsonl.zst", packed.substr(0, packed.size() - 3), "truncated"},
           {"wrong.jsonl.zst", "no zstd at all, but text", "wrong.jsonl.zst: damaged at byte"},
           {"a.jsonl.gz", "\x1f\x8b\x08", "a.jsonl.gz: truncated"},
           {"empty.txt", "", "the 1 files hold no document: 1 are empty, 0 lines are not valid"}}) {
    const std::string file = fmt::format("{}/{}", folder, name), output = file + "_out";
    write_file(file, bytes);
    const Outcome outcome = run_program(0, {"tokenize", file, "--tokenizer", kTokenizer, "--out", output});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
    EXPECT_TRUE(has(outcome.output, message)) << outcome.output;
    EXPECT_FALSE(fs::exists(output));
  }
  const Outcome no_end = run_program(0, {"tokenize", folder + "/a.jsonl", "--tokenizer", kTokenizer, "--out",
                                         folder + "/x", "--end-of-text", "<none>"});
  EXPECT_EQ(no_end.exit_code, 2);
  EXPECT_TRUE(has(no_end.output, "--end-of-text: the tokenizer has no token '<none>'")) << no_end.output;
}

// Numbers that Python writes, and JSON lacks or nlohmann::json cannot hold.
TEST(Tokenize, UnusualNumbersInOtherKeysAreRead) {
  const std::string folder = fresh_folder("tokenize_numbers");
  std::string lines;
  for (const std::string& number :
       std::vector<std::string>{"1e999", "-1e999", "NaN", "-Infinity", "[Infinity, 1]", std::string(400, '9')}) {
    lines += "{\"score\": " + number + ", \"text\": \"NaN, \\\"1e999\"}\n";
  }
  write_file(folder + "/good.jsonl", lines);
  const std::vector<std::string> command = {"tokenize", "--tokenizer", kTokenizer, "--out", folder + "/out"};
  const Outcome outcome = run_program(0, with(command, {folder + "/good.jsonl"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(tokens_in(folder + "/out", 600), encoded(std::vector<std::string>(6, "NaN, \"1e999")));
  EXPECT_EQ(JsonNode::parse("{\"a\": -1e999, \"b\": 1e308}").dump(), "{\"a\":{},\"b\":1e+308}");
  for (const std::string bad : {"{\"text\": NaN}", "{NaN: 1, \"text\": \"a\"}", "{\"n\": 1e999e1, \"text\": \"a\"}",
                                "{\"n\": nan, \"text\": \"a\"}"}) {
    write_file(folder + "/bad.jsonl", bad + "\n");
    const Outcome refused =
        run_program(0, {"tokenize", folder + "/bad.jsonl", "--tokenizer", kTokenizer, "--out", folder + "/x"});
    EXPECT_EQ(refused.exit_code, 3) << bad << refused.output;
    EXPECT_TRUE(has(refused.output, "bad.jsonl:1: ")) << refused.output;
  }
}

// A damaged file of lines is refused or gives whole token files: never a crash, never a part of the output.
void expect_damage_survived(const std::string& whole, const std::vector<std::string>& options,
                            const std::function<int64_t(const std::string& output)>& tokens) {
  const std::string folder = fresh_folder("tokenize_mutated");
  std::mt19937 random(1);
  int refused = 0, taken = 0;
  for (int i = 0; i < 60; ++i) {
    std::string text = whole;
    if (i % 3 == 0) text.resize(random() % text.size());
    for (unsigned count = 1 + random() % 6; count > 0 && !text.empty(); --count) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    if (i % 3 == 1) text.insert(random() % text.size(), 1, static_cast<char>(random()));
    const bool packs = i % 2 == 0;
    std::string bytes = packs ? compressed(text) : text;
    if (packs && i % 4 == 0) bytes[random() % bytes.size()] = static_cast<char>(random());
    const std::string file = fmt::format("{}/{}.jsonl{}", folder, i, packs ? ".zst" : ""), output = file + "_out";
    write_file(file, bytes);
    const Outcome outcome =
        run_program(0, with({"tokenize", file, "--out", output, "--bad-lines", i % 5 == 0 ? "0" : "100"}, options));
    ASSERT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 3) << i << ": " << outcome.output;
    EXPECT_FALSE(fs::exists(output + ".mantissa-partial")) << i;
    EXPECT_EQ(fs::exists(output), outcome.exit_code == 0) << i;
    if (outcome.exit_code == 0) {
      EXPECT_GT(tokens(output), 0);
    } else {
      EXPECT_TRUE(has(outcome.output, file) || has(outcome.output, "hold no document")) << outcome.output;
    }
    ++(outcome.exit_code == 0 ? taken : refused);
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(taken, 5);
}

TEST(Tokenize, DamagedLinesNeverCrashOrLeaveHalfAnOutput) {
  std::string whole;
  for (int i = 0; i < 20; ++i)
    whole += fmt::format("{{\"text\": \"line \\u00e9 {} \\\"of\\\" many\", \"n\": [{}]}}\n", i, i);
  expect_damage_survived(whole, {"--tokenizer", kTokenizer},
                         [](const std::string& output) { return std::ssize(tokens_in(output, 600)); });
}

struct ShardContent {
  std::vector<uint16_t> tokens;
  std::vector<uint8_t> counts;
  std::vector<int64_t> starts;
};

// The only shard of a folder.
ShardContent shard_in(const std::string& folder) {
  const std::string path = folder + "/tokens_000000.safetensors";
  const TokenFile shard = read_token_shard({path, InputFile::Descriptor::kPerRead});
  EXPECT_FALSE(fs::exists(folder + "/tokens_000001.safetensors"));
  const auto count = static_cast<size_t>(shard.count);
  ShardContent content{std::vector<uint16_t>(count), std::vector<uint8_t>(count), shard.documents};
  const InputFile file(path, InputFile::Descriptor::kKept);
  file.read(shard.offset_bytes, std::as_writable_bytes(std::span(content.tokens)));
  file.read(shard.mask_offset.value(), std::as_writable_bytes(std::span(content.counts)));
  return content;
}

// A tokenizer of bytes: special tokens, then the bytes as a byte-level BPE orders them, '!' to '~' first.
std::string byte_tokenizer(const std::string& folder) {
  write_file(folder + "/a.txt", "a");
  std::vector<std::string> command = {"tokenizer", "train", folder + "/a.txt", "--vocab",
                                      "262",       "--out", folder + "/bytes"};
  for (const char* const special :
       {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}) {
    command.insert(command.end(), {"--special", special});
  }
  const Outcome outcome = run_program(0, command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return folder + "/bytes";
}

TEST(TokenizeChat, IdsAndTargetsOfEachTemplate) {
  const std::string folder = fresh_folder("tokenize_chat"), tokenizer = byte_tokenizer(folder);
  write_file(folder + "/chat.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
             "{\"role\": \"assistant\", \"content\": \"Yo!\"}]}\n"
             "{\"messages\": [{\"role\": \"system\", \"content\": \"Hi\"}, "
             "{\"role\": \"assistant\", \"content\": \"Yo!\"}, {\"role\": \"user\", \"content\": \"Hi\"}, "
             "{\"role\": \"assistant\", \"content\": \"Yo!\"}]}\n");
  using Ids = std::vector<uint16_t>;
  const Ids user = {90, 88, 74, 87}, system = {88, 94, 88, 89, 74, 82}, hi = {45, 78}, yo = {62, 84, 6},
            assistant = {70, 88, 88, 78, 88, 89, 70, 83, 89};
  constexpr uint16_t kBreak = 204, kSpace = 226;
  // "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
  Ids qwen;
  for (const char c : std::string("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")) {
    qwen.push_back(c == ' ' ? kSpace : static_cast<uint16_t>(c - '!' + 6));
  }
  struct Expected {
    Ids ids;
    std::vector<uint8_t> counts;
    void add(const std::vector<Ids>& parts, uint8_t count) {
      for (const Ids& part : parts) ids.insert(ids.end(), part.begin(), part.end());
      counts.resize(ids.size(), count);
    }
  };
  for (const std::string name : {"chatml", "qwen", "llama3"}) {
    SCOPED_TRACE(name);
    Expected expected;
    std::vector<int64_t> starts = {0};
    if (name == "llama3") {
      expected.add({{2, 3}, user, {4, kBreak, kBreak}, hi, {5, 3}, assistant, {4, kBreak, kBreak}}, 0);
      expected.add({yo, {5}}, 1);
      starts.push_back(std::ssize(expected.ids));
      expected.add({{2, 3}, system, {4, kBreak, kBreak}, hi, {5, 3}, assistant, {4, kBreak, kBreak}}, 0);
      expected.add({yo, {5}}, 1);
      expected.add({{3}, user, {4, kBreak, kBreak}, hi, {5, 3}, assistant, {4, kBreak, kBreak}}, 0);
      expected.add({yo, {5}}, 1);
    } else {
      if (name == "qwen") expected.add({{0}, system, {kBreak}, qwen, {1, kBreak}}, 0);
      expected.add({{0}, user, {kBreak}, hi, {1, kBreak, 0}, assistant, {kBreak}}, 0);
      expected.add({yo, {1}}, 1);
      expected.add({{kBreak}}, 0);
      starts.push_back(std::ssize(expected.ids));
      expected.add({{0}, system, {kBreak}, hi, {1, kBreak, 0}, assistant, {kBreak}}, 0);
      expected.add({yo, {1}}, 1);
      expected.add({{kBreak, 0}, user, {kBreak}, hi, {1, kBreak, 0}, assistant, {kBreak}}, 0);
      expected.add({yo, {1}}, 1);
      expected.add({{kBreak}}, 0);
    }
    const std::string out = folder + "/" + name;
    const Outcome outcome =
        run_program(0, {"tokenize", folder + "/chat.jsonl", "--tokenizer", tokenizer, "--chat", name, "--out", out});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_TRUE(has(outcome.output, "12 tokens are the assistant's")) << outcome.output;
    const ShardContent found = shard_in(out);
    EXPECT_EQ(found.tokens, expected.ids);
    EXPECT_EQ(found.counts, expected.counts);
    EXPECT_EQ(found.starts, starts);
  }
}

TEST(TokenizeChat, DamagedConversationsNeverCrashOrLeaveHalfAnOutput) {
  const std::string tokenizer = byte_tokenizer(fresh_folder("tokenize_chat_mutated"));
  std::string whole;
  for (int i = 0; i < 12; ++i)
    whole += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Add \\u00e9 {}\"}}, "
        "{{\"role\": \"assistant\", \"content\": \"It is \\\"{}\\\"\"}}]}}\n",
        i, i * i);
  expect_damage_survived(whole, {"--tokenizer", tokenizer, "--chat", "llama3"}, [](const std::string& output) {
    const ShardContent content = shard_in(output);
    EXPECT_GT(std::ranges::count(content.counts, 1), 0);
    return std::ssize(content.tokens);
  });
}

}  // namespace
}  // namespace mantissa::testing
