// Tokenizer files that are damaged or need something else: each refusal names the file, the key and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/tensor/philox.h"
#include "tests/core/io/temp_folder.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

Json small_file(const std::string& name) {
  return Json::parse(testing::read_file("tests/tools/text/reference/" + name + ".json"));
}

// The message of the refusal, without the folder.
std::string refusal(const testing::TempFolder& folder, const std::string& name, const std::string& content) {
  const std::string path = folder.write(name, content);
  std::string message = testing::message_of<DataError>([&] { open_tokenizer(path); });
  if (message.starts_with(folder.path() + "/")) message.erase(0, folder.path().size() + 1);
  return message;
}

// The pattern of the first pre-tokenizer in the file of llama3.
Json& pattern_of(Json& tokenizer) { return tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]; }

struct BadKey {
  std::string file;
  std::function<void(Json&)> damage;
  std::string message;
};

const BadKey kBadKeys[] = {
    {"gpt2", [](Json& j) { j.erase("model"); }, "tokenizer.json: the key 'model' is missing"},
    {"gpt2", [](Json& j) { j["model"]["type"] = "Unigram"; },
     "model: the type 'Unigram' is not supported; only BPE is"},
    {"gpt2", [](Json& j) { j["model"]["type"] = "WordPiece"; }, "model: the type 'WordPiece' is not supported"},
    {"gpt2", [](Json& j) { j["model"]["vocab"] = Json::array(); }, "model.vocab: expected an object, got an array"},
    {"gpt2", [](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab: it has no tokens"},
    {"gpt2", [](Json& j) { j["model"]["vocab"]["!"] = -1; },
     "model.vocab.!: expected a token's id, 0 to 4194303, got -1"},
    {"gpt2", [](Json& j) { j["model"]["vocab"]["!"] = 1e9; }, "model.vocab.!: expected a token's id"},
    {"gpt2", [](Json& j) { j["model"]["vocab"]["!"] = 1u << 30; }, "got 1073741824"},
    {"gpt2", [](Json& j) { j["model"]["merges"][3] = "a"; }, "model.merges[3]: expected two tokens: \"a b\""},
    {"gpt2", [](Json& j) { j["model"]["merges"][3] = "a b c"; }, "model.merges[3]: expected two tokens"},
    {"gpt2", [](Json& j) { j["model"]["merges"][3] = {"a"}; }, "model.merges[3]: expected two tokens"},
    {"gpt2", [](Json& j) { j["model"]["merges"][3] = "zzzz z"; }, "merges[3]: the token 'zzzz' is not in model.vocab"},
    {"gpt2", [](Json& j) { j["model"]["merges"][3] = "~ ~"; }, "merges[3]: the token '~~' is not in model.vocab"},
    {"gpt2", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix: '</w>' is not"},
    {"gpt2", [](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout: merges that are left out at random"},
    {"gpt2", [](Json& j) { j["model"]["ignore_merges"] = "no"; }, "ignore_merges: expected true or false, got \"no\""},
    {"llama2", [](Json& j) { j["model"]["unk_token"] = "?x"; },
     "model.unk_token: the token '?x' is not in model.vocab"},
    {"gpt2", [](Json& j) { j["pre_tokenizer"]["type"] = "BertPreTokenizer"; },
     "pre_tokenizer: the type 'BertPreTokenizer' is not supported; supported: ByteLevel, Digits, Metaspace, "
     "Sequence"},
    {"llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Both"; },
     "pre_tokenizer.pretokenizers[0].behavior: expected Removed, Isolated"},
    {"llama3", [](Json& j) { pattern_of(j) = "(a"; },
     "pre_tokenizer.pretokenizers[0]: the pattern '(a' is no regular expression: missing closing parenthesis"},
    {"llama3", [](Json& j) { pattern_of(j) = "\\p{N}{1,3}+"; }, "the pattern '\\p{N}{1,3}+' contains '}+'"},
    {"llama3", [](Json& j) { pattern_of(j) = "[a-z&&[^b]]"; }, "'&&'"},
    {"llama3", [](Json& j) { pattern_of(j) = "\\h+"; }, "'\\h'"},
    {"llama3", [](Json& j) { pattern_of(j) = "\\w+"; }, "'\\w'"},
    {"llama3", [](Json& j) { pattern_of(j) = "a\\b"; }, "'\\b'"},
    {"llama3", [](Json& j) { pattern_of(j) = "[[:alpha:]_]"; }, "'[:alpha:]'"},
    {"llama3",
     [](Json& j) { std::swap(j["pre_tokenizer"]["pretokenizers"][0], j["pre_tokenizer"]["pretokenizers"][1]); },
     "pre_tokenizer.pretokenizers[1]: 'Split' after ByteLevel is not supported"},
    {"qwen", [](Json& j) { j["normalizer"]["type"] = "Lowercase"; },
     "normalizer: the type 'Lowercase' is not supported; supported: NFC, NFD"},
    {"llama2", [](Json& j) { j["decoder"] = nullptr; }, "tokenizer.json: decoder: expected how tokens are joined"},
    {"llama2", [](Json& j) { j["decoder"]["decoders"][3]["stop"] = 2; },
     "decoder.decoders[3]: only spaces at the start"},
    {"gpt2", [](Json& j) { j["decoder"]["type"] = "WordPiece"; }, "decoder: the type 'WordPiece' is not supported"},
    {"llama3", [](Json& j) { j["post_processor"]["special_tokens"] = Json::object(); },
     "post_processor.special_tokens: the key '<|endoftext|>' is missing"},
    {"llama3", [](Json& j) { j["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"][0] = 99999; },
     "post_processor.special_tokens.<|endoftext|>.ids[0]: token 99999 is not in the vocabulary"},
    {"gpt2", [](Json& j) { j["added_tokens"][0]["id"] = "0"; }, "added_tokens[0].id: expected a token's id"},
    {"gpt2", [](Json& j) { j["added_tokens"][0]["id"] = 7; },
     "added_tokens[0]: the token '<|endoftext|>' has id 7 here and 0 in model.vocab"},
    {"gpt2", [](Json& j) { j["added_tokens"] = 1; }, "added_tokens: expected an array, got 1"},
};

TEST(BadTokenizer, EveryKeyIsNamed) {
  const testing::TempFolder folder;
  for (const BadKey& wrong : kBadKeys) {
    Json json = small_file(wrong.file);
    wrong.damage(json);
    const std::string message = refusal(folder, "tokenizer.json", json.dump());
    EXPECT_TRUE(message.starts_with("tokenizer.json: ")) << message;
    EXPECT_NE(message.find(wrong.message), std::string::npos) << message << "\nexpected: " << wrong.message;
  }
}

TEST(BadTokenizer, DeepFilesAreRefused) {
  const testing::TempFolder folder;
  const std::string many(100'000, '[');
  EXPECT_NE(refusal(folder, "tokenizer.json", many).find("tokenizer.json: not valid JSON: "), std::string::npos);
  Json json = small_file("gpt2");
  json["pre_tokenizer"] = 0;
  std::string text = json.dump();
  const std::string lists = many + std::string(many.size(), ']');
  text.replace(text.find("\"pre_tokenizer\":0"), 17, "\"pre_tokenizer\":" + lists);
  EXPECT_NE(refusal(folder, "tokenizer.json", text).find("pre_tokenizer: expected an object, got an array"),
            std::string::npos);
  Json sequence = json["decoder"];
  for (int i = 0; i < 20; ++i) sequence = {{"type", "Sequence"}, {"decoders", {sequence}}};
  json = small_file("gpt2");
  json["decoder"] = sequence;
  EXPECT_NE(refusal(folder, "tokenizer.json", json.dump()).find("too many sequences within each other"),
            std::string::npos);
}

TEST(BadTokenizer, FilesAndFolders) {
  const testing::TempFolder folder;
  EXPECT_NE(testing::message_of<DataError>([&] { open_tokenizer(folder.path()); }).find("has no tokenizer.json; "),
            std::string::npos);
  folder.write("tokenizer.model", "x");
  EXPECT_NE(testing::message_of<DataError>([&] { open_tokenizer(folder.path()); }).find("but a tokenizer.model"),
            std::string::npos);
  EXPECT_NE(refusal(folder, "tokenizer.txt", "x").find("the kind of the file is not known"), std::string::npos);
  EXPECT_NE(testing::message_of<DataError>([&] { open_tokenizer(folder.file("none")); }).find("does not exist"),
            std::string::npos);
  EXPECT_NE(testing::message_of<DataError>([&] { open_tokenizer(folder.file("none.json")); }).find("No such file"),
            std::string::npos);
}

// Ids and flags are those of transformers 5.24.
TEST(TokenizerConfig, TokensThatItAloneNamesAreAdded) {
  const testing::TempFolder folder;
  folder.write("tokenizer.json", small_file("gpt2").dump());
  const auto opened = [&folder](const std::string& name, const Json& config) {
    folder.write(name, config.dump());
    return open_tokenizer(folder.path());
  };
  const auto plain = opened("tokenizer_config.json", Json::object());
  const auto size = static_cast<int32_t>(plain->vocab_size());
  EXPECT_FALSE(plain->eos());
  const Json decoder = {{std::to_string(size), {{"content", "<think>"}, {"lstrip", true}}},
                        {"0", {{"content", "<|endoftext|>"}, {"special", true}}}};
  const auto tokenizer = opened("tokenizer_config.json", {{"bos_token", {{"content", "<|endoftext|>"}}},
                                                          {"eos_token", "<|im_end|>"},
                                                          {"pad_token", "!"},
                                                          {"additional_special_tokens", Json::array({"<more>"})},
                                                          {"added_tokens_decoder", decoder}});
  EXPECT_EQ(tokenizer->own_vocab_size(), size);
  EXPECT_EQ(tokenizer->vocab_size(), size + 3);
  EXPECT_EQ(tokenizer->bos(), 0);
  EXPECT_EQ(tokenizer->eos(), size + 1);
  std::vector<int32_t> ids;
  tokenizer->encode("  <think><|im_end|>!<more>", ids);
  const int32_t mark = small_file("gpt2")["model"]["vocab"]["!"];
  EXPECT_EQ(ids, (std::vector<int32_t>{size, size + 1, mark, size + 2}));
  EXPECT_EQ(tokenizer->decode(ids), "<think><|im_end|>!<more>");
  EXPECT_EQ(tokenizer->decode(ids, {.skip_special_tokens = true}), "<think>");
  // Its flags hold, and its order.
  const auto ids_of = [](const Tokenizer& other, std::string_view text) {
    std::vector<int32_t> found;
    other.encode(text, found);
    return found;
  };
  const Json flags = {{"0", {{"content", "<|endoftext|>"}, {"special", true}, {"rstrip", true}}}};
  const auto stripping = opened("tokenizer_config.json", {{"added_tokens_decoder", flags}});
  EXPECT_EQ(ids_of(*stripping, "<|endoftext|>  !"), (std::vector<int32_t>{0, mark}));
  folder.write("tokenizer_config.json", R"({"extra_special_tokens": {"b": "<img>", "a": "<aud>"}})");
  EXPECT_EQ(ids_of(*open_tokenizer(folder.path()), "<img><aud>"), (std::vector<int32_t>{size, size + 1}));
  // Older folders name special tokens in a file of their own.
  opened("tokenizer_config.json", {{"eos_token", "!"}});
  EXPECT_EQ(opened("special_tokens_map.json", {{"eos_token", {{"content", "</s>"}}}})->eos(), size);
  const auto refused = [&](const Json& config) {
    return testing::message_of<DataError>([&] { opened("tokenizer_config.json", config); });
  };
  EXPECT_NE(refused({{"pad_token", 7}}).find("tokenizer_config.json: pad_token: expected a string, got 7"),
            std::string::npos);
  EXPECT_NE(
      refused({{"added_tokens_decoder", {{"x", "a"}}}}).find("added_tokens_decoder: expected ids of tokens as keys"),
      std::string::npos);
}

// Ids are those of AutoTokenizer of transformers 5.24.
TEST(TokenizerConfig, TokensOfAModelAndOfOlderFoldersAreAdded) {
  const testing::TempFolder folder;
  folder.write("tokenizer.json", small_file("gpt2").dump());
  const auto ids_of = [&folder](const std::string& config, std::string_view text) {
    folder.write("tokenizer_config.json", config);
    std::vector<int32_t> ids;
    open_tokenizer(folder.path())->encode(text, ids);
    return ids;
  };
  const auto size = static_cast<int32_t>(open_tokenizer(folder.path())->vocab_size());
  const std::vector<int32_t> two = {size, size + 1};
  EXPECT_EQ(
      ids_of(R"({"z_token": "<z>", "a_token": {"__type": "AddedToken", "content": "<a>"}, "b_token": null})", "<z><a>"),
      two);
  EXPECT_EQ(ids_of(R"({"z_token": "<z>", "pad_token": "<p>", "extra_special_tokens": ["<x>"]})", "<p><z><x>"),
            (std::vector<int32_t>{size, size + 1, size + 2}));
  EXPECT_EQ(ids_of(R"({"model_specific_special_tokens": {"q": "<q>", "b": "<b>"}})", "<q><b>"), two);
  EXPECT_NE(ids_of(R"({"z_token": "<z>", "model_specific_special_tokens": {"q": "<q>"}})", "<z><q>").size(), 2u)
      << "the token of the first kind replaces those of the second";
  folder.write("added_tokens.json", nlohmann::json{{"<b>", size}, {"<a>", size + 1}}.dump());
  EXPECT_EQ(ids_of(R"({"pad_token": "<p>"})", "<b><a><p>"), (std::vector<int32_t>{size, size + 1, size + 2}));
  EXPECT_NE(ids_of(R"({"added_tokens_decoder": {}})", "<b><a>"), two) << "the newer form counts alone";
}

// transformers sets `encode_special_tokens` of tokenizers. Added tokens stay unless they are special.
TEST(TokenizerConfig, SplitSpecialTokensMakesThemTextInTexts) {
  const testing::TempFolder folder;
  folder.write("tokenizer.json", small_file("gpt2").dump());
  const auto ids_of = [&](const Json& split, std::string_view text, EncodeOptions options = {}) {
    const Json added = {{"900", {{"content", "<think>"}}}};
    folder.write("tokenizer_config.json",
                 Json{{"split_special_tokens", split}, {"added_tokens_decoder", added}}.dump());
    std::vector<int32_t> ids;
    open_tokenizer(folder.path())->encode(text, ids, options);
    return ids;
  };
  EXPECT_EQ(ids_of(nullptr, "<|endoftext|>"), std::vector<int32_t>{0});
  EXPECT_EQ(ids_of(false, "<|endoftext|>", {.has_marks = true}), std::vector<int32_t>{0});
  const std::vector<int32_t> as_text = ids_of(false, "<|endoftext|>", {.special_tokens_as_text = true});
  EXPECT_EQ(ids_of(true, "<|endoftext|>"), as_text);
  EXPECT_GT(as_text.size(), 1u);
  EXPECT_EQ(ids_of(true, "<think>").size(), 1u);
  EXPECT_THAT(testing::message_of<DataError>([&] { ids_of("yes", ""); }),
              ::testing::HasSubstr("tokenizer_config.json: split_special_tokens: expected true or false, got \"yes\""));
  EXPECT_THAT(testing::message_of<DataError>([&] { ids_of(true, "<|endoftext|>", {.has_marks = true}); }),
              ::testing::HasSubstr("split_special_tokens: true, which makes the marks of turns plain text"));
  folder.write("tokenizer_config.json", R"({"split_special_tokens": NaN})");
  EXPECT_THAT(testing::message_of<DataError>([&] { open_tokenizer(folder.path()); }),
              ::testing::HasSubstr("expected true or false, got {} or a number that JSON has not (NaN, "));
}

std::string tiktoken_of_bytes() {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '=', ' '};
    text += std::to_string(byte) + "\n";
  }
  return text;
}

TEST(Tiktoken, RanksAreIdsAndPriorities) {
  const testing::TempFolder folder;
  // "bc" comes before "ab"; "abc" can be made of "a" and "bc" only then.
  const std::string ranks = tiktoken_of_bytes() + "eHl6 259\nYWJj 258\nYWI= 257\nYmM= 256\n";
  const auto tokenizer = open_tokenizer(folder.write("gpt2_small.tiktoken", ranks));
  const auto ids_of = [&](std::string_view text) {
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    return ids;
  };
  EXPECT_EQ(ids_of("abc"), (std::vector<int32_t>{258}));
  EXPECT_EQ(ids_of("xabc"), (std::vector<int32_t>{'x', 258}));
  EXPECT_EQ(ids_of("aabc"), (std::vector<int32_t>{'a', 258}));  // never "aab", "c"
  EXPECT_EQ(ids_of("xyz"), (std::vector<int32_t>{259}));        // a token that no merge makes
  EXPECT_EQ(ids_of("axyz"), (std::vector<int32_t>{'a', 'x', 'y', 'z'}));
  EXPECT_EQ(ids_of("ab<|endoftext|>c"), (std::vector<int32_t>{257, 50256, 'c'}));
  EXPECT_EQ(tokenizer->eos(), 50256);
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{258, 50256, 300, 0xE9}), "abc<|endoftext|>\xE9");
  EXPECT_NE(testing::message_of<DataError>([&] {
              tokenizer->decode(std::vector<int32_t>{50257});
            }).find("token 50257 is not in the tokenizer's vocabulary, whose ids are 0 to 50256"),
            std::string::npos);
}

TEST(Tiktoken, DamagedFilesAreRefusedByLine) {
  const testing::TempFolder folder;
  const std::string good = tiktoken_of_bytes();
  const auto expect = [&](const std::string& name, const std::string& text, const std::string& message) {
    const std::string refused = refusal(folder, name, text);
    EXPECT_NE(refused.find(message), std::string::npos) << refused;
  };
  expect("mine.tiktoken", good, "its name must start with one of cl100k, o200k");
  expect("gpt2.tiktoken", good + "YmM=\n",
         "gpt2.tiktoken:257: expected a token in base64, a space and its rank, got 'YmM='");
  expect("gpt2.tiktoken", good + "YmM 256\n", "gpt2.tiktoken:257: ");
  expect("gpt2.tiktoken", good + "Ym*= 256\n", "gpt2.tiktoken:257: ");
  expect("gpt2.tiktoken", good + "YmM= 25x\n", "gpt2.tiktoken:257: ");
  expect("gpt2.tiktoken", good + "YmM= 99999999999\n", "gpt2.tiktoken:257: ");
  expect("gpt2.tiktoken", good + "YmM= 7\n", "two tokens have the rank 7");
  expect("gpt2.tiktoken", good + "YmM= 50256\n", "token 50256 must be free for <|endoftext|>");
  expect("gpt2.tiktoken", good.substr(0, good.size() - 9), "byte 0xff has no token");
  expect("gpt2.tiktoken", "", "it has no tokens");
}

std::string llmc_file(const std::vector<std::string>& tokens, int32_t eot) {
  std::vector<int32_t> header(256);
  header[0] = 20240328;
  header[1] = 2;
  header[2] = static_cast<int32_t>(tokens.size());
  header[3] = eot;
  std::string file(header.size() * sizeof(int32_t), '\0');
  std::memcpy(file.data(), header.data(), file.size());
  for (const std::string& token : tokens) file += static_cast<char>(token.size()) + token;
  return file;
}

TEST(LlmcTokenizer, DecodesOnly) {
  const testing::TempFolder folder;
  const std::string good = llmc_file({"a", "\xC3", "\xA9\n", "<end>"}, 3);
  const auto tokenizer = open_tokenizer(folder.write("t.bin", good));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, 1, 2, 3}), "a\u00E9\n<end>");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, 3}, {.skip_special_tokens = true}), "a");
  EXPECT_EQ(tokenizer->eos(), 3);
  EXPECT_EQ(tokenizer->id_of("\xA9\n"), 2);
  std::vector<int32_t> ids;
  EXPECT_NE(testing::message_of<DataError>([&] { tokenizer->encode("a", ids); }).find("has no merges"),
            std::string::npos);
  StreamingDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.add(1), "");
  EXPECT_EQ(decoder.add(2), "\u00E9\n");
  EXPECT_EQ(decoder.add(1), "");
  EXPECT_EQ(decoder.finish(), "\xC3");

  EXPECT_NE(refusal(folder, "t.bin", good.substr(0, 100)).find("expected a header of 1024 bytes, got 100"),
            std::string::npos);
  EXPECT_NE(refusal(folder, "t.bin", std::string(2000, 'x')).find("expected magic 20240328"), std::string::npos);
  EXPECT_NE(refusal(folder, "t.bin", good.substr(0, good.size() - 1)).find("ends within token 3 of 4"),
            std::string::npos);
  EXPECT_NE(refusal(folder, "t.bin", good + "x").find("got 1 more bytes"), std::string::npos);
  EXPECT_NE(refusal(folder, "t.bin", llmc_file({"a"}, 1)).find("must be 0 to 0, got 1"), std::string::npos);
}

// Bytes of the file change, disappear, or come twice; it is read, or refused with its name.
TEST(BadTokenizer, DamagedFilesAreReadOrRefused) {
  const testing::TempFolder folder;
  int read = 0, refused = 0;
  for (const std::string name : {"gpt2", "llama3", "llama2", "metaspace"}) {
    const Json original = small_file(name);
    Json small = original;  // few tokens, so that damage elsewhere is likely
    const auto& merges = small["model"]["merges"];
    small["model"]["merges"] = Json(merges.begin(), merges.begin() + 4);
    Json vocab;
    for (const auto& [token, id] : small["model"]["vocab"].items()) {
      if (id.get<int>() < 12 || token.size() < 2) vocab[token] = id;
    }
    for (const Json& merge : small["model"]["merges"]) {
      const std::string left = merge[0], right = merge[1];
      for (const std::string& token : {left, right, left + right}) vocab[token] = original["model"]["vocab"][token];
    }
    small["model"]["vocab"] = vocab;
    const std::string whole = small.dump();
    open_tokenizer(folder.write("whole.json", whole));
    for (uint64_t seed = 0; seed < 200; ++seed) {
      std::string text = whole;
      for (uint32_t edit = 0; edit < 1 + seed % 3; ++edit) {
        const PhiloxCounter random = philox(seed, {edit, 0, 0, 0});
        const size_t at = random[0] % text.size();
        constexpr std::string_view kPieces[] = {"\"",   "{", "}",  "[",  "]",    ":",   ",",
                                                "null", "0", "-1", "\\", "\xff", "true"};
        if (random[1] % 3 == 0) text.erase(at, random[2] % 30);
        if (random[1] % 3 == 1) text.insert(at, kPieces[random[2] % std::size(kPieces)]);
        if (random[1] % 3 == 2) text[at] = static_cast<char>(random[2]);
      }
      try {
        const auto tokenizer = open_tokenizer(folder.write("damaged.json", text));
        std::vector<int32_t> ids;
        tokenizer->encode("Some text <|endoftext|> \xF0\x9F\x99\x82  123\n", ids, {.add_special_tokens = true});
        static_cast<void>(tokenizer->decode(ids));
        ++read;
      } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what()).find("damaged.json: "), std::string::npos) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 20);
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace mantissa
