// `mantissa tokenizer` and `mantissa tokenize` as a user meets them.
#include <gtest/gtest.h>

#include <zstd.h>

#include <filesystem>
#include <random>

#include <fmt/core.h>

#include "core/io/token_data.h"
#include "core/text/tokenizer.h"
#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

namespace fs = std::filesystem;

const std::string kTokenizer = "tests/core/text/reference/gpt2.json";

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
  const std::string text = read_file("tests/core/text/reference/train.txt");
  fs::create_directories(folder + "/text");
  write_file(folder + "/text/a.txt", text);
  const Outcome trained = run_program(0, {"tokenizer", "train", folder + "/text", "--vocab", "600", "--special",
                                          "<|endoftext|>", "--out", folder + "/made"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_TRUE(has(trained.output, "trained 600 tokens with 343 merges on 0.0 MB in ")) << trained.output;
  EXPECT_TRUE(read_file(folder + "/made/tokenizer.json") == read_file("tests/core/text/reference/trained_gpt2.json"));
  const Outcome lines =
      run_program(0, {"tokenizer", "train", folder + "/text/a.txt", "--vocab", "500", "--by-lines", "--special",
                      "<|endoftext|>", "--min-frequency", "3", "--out", folder + "/lines"});
  EXPECT_TRUE(read_file(folder + "/lines/tokenizer.json") == read_file("tests/core/text/reference/trained_lines.json"))
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
  const Outcome beyond = run_program(0, {"tokenizer", "decode", folder + "/made", "259"});
  EXPECT_EQ(beyond.exit_code, 3);
  EXPECT_TRUE(has(beyond.output, "token 259 is not in the tokenizer's vocabulary, whose ids are 0 to 258"))
      << beyond.output;
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
  EXPECT_TRUE(has(strict.output, "a.jsonl:2: no JSON: {\"text\": \"cut off")) << strict.output;
  EXPECT_TRUE(has(strict.output, "--bad-lines N passes over N of them")) << strict.output;
  EXPECT_FALSE(fs::exists(folder + "/out"));
  EXPECT_FALSE(fs::exists(folder + "/out.mantissa-partial"));
  EXPECT_EQ(run_program(0, with(command, {"--bad-lines", "3"})).exit_code, 3);
  const Outcome lenient = run_program(0, with(command, {"--bad-lines", "4"}));
  EXPECT_EQ(lenient.exit_code, 0) << lenient.output;
  EXPECT_TRUE(has(lenient.output, "a.jsonl:5: no object with a text 'text'")) << lenient.output;
  EXPECT_TRUE(has(lenient.output, "4 lines were passed over")) << lenient.output;
  EXPECT_EQ(tokens_in(folder + "/out", 600), encoded({"good"}));

  const std::string packed = compressed(std::string("{\"text\": \"a text that is long enough\"}\n"));
  for (const auto& [name, bytes, message] : std::vector<std::array<std::string, 3>>{
           {"cut.jsonl.zst", packed.substr(0, packed.size() - 3), "truncated"},
           {"wrong.jsonl.zst", "no zstd at all, but text", "damaged: Unknown frame descriptor"},
           {"a.jsonl.gz", "\x1f\x8b\x08", "is compressed by gzip"},
           {"empty.txt", "", "the 1 files hold no document: 1 are empty, 0 lines are no JSON"}}) {
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

// A damaged file of lines is refused or gives whole token files: never a crash, never a part of the output.
TEST(Tokenize, DamagedLinesNeverCrashOrLeaveHalfAnOutput) {
  const std::string folder = fresh_folder("tokenize_mutated");
  std::string whole;
  for (int i = 0; i < 20; ++i)
    whole += fmt::format("{{\"text\": \"line \\u00e9 {} \\\"of\\\" many\", \"n\": [{}]}}\n", i, i);
  std::mt19937 random(1);
  int refused = 0, taken = 0;
  for (int i = 0; i < 60; ++i) {
    std::string text = whole;
    if (i % 3 == 0) text.resize(random() % text.size());
    for (unsigned count = 1 + random() % 6; count > 0 && !text.empty(); --count) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    const bool packs = i % 2 == 0;
    std::string bytes = packs ? compressed(text) : text;
    if (packs && i % 4 == 0) bytes[random() % bytes.size()] = static_cast<char>(random());
    const std::string file = fmt::format("{}/{}.jsonl{}", folder, i, packs ? ".zst" : ""), output = file + "_out";
    write_file(file, bytes);
    const Outcome outcome = run_program(
        0, {"tokenize", file, "--tokenizer", kTokenizer, "--out", output, "--bad-lines", i % 5 == 0 ? "0" : "100"});
    ASSERT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 3) << i << ": " << outcome.output;
    EXPECT_FALSE(fs::exists(output + ".mantissa-partial")) << i;
    EXPECT_EQ(fs::exists(output), outcome.exit_code == 0) << i;
    if (outcome.exit_code == 0) {
      EXPECT_GT(tokens_in(output, 600).size(), 0u);
    }
    ++(outcome.exit_code == 0 ? taken : refused);
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(taken, 5);
}

}  // namespace
}  // namespace mantissa::testing
