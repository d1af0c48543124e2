#include "tools/text/verbs.h"

#include <memory>

#include "tools/text/chat/chat_template.h"
#include "tools/text/tokenize_verb.h"
#include "tools/text/tokenizer_verbs.h"

namespace mantissa {
namespace {

constexpr const char* kTokenizer = "folder with a tokenizer.json, or a file: *.json, *.tiktoken, llm.c's *.bin";

void add_train(CLI::App* tokenizer, std::vector<Verb>& verbs) {
  CLI::App* train = tokenizer->add_subcommand("train", "Train a byte-level BPE on text");
  const auto request = std::make_shared<TokenizerTrainRequest>();
  BpeTrainerOptions& options = request->options;
  train->add_option("inputs", request->inputs, "text files, patterns, folders; each file is one text")->required();
  train->add_option("--vocab", options.vocab, "tokens at most, with 256 bytes and special tokens")
      ->required()
      ->check(CLI::Range(int64_t{256}, int64_t{1} << 24));
  train->add_option("--out", request->output, "folder to make, with tokenizer.json and tokenizer_config.json")
      ->required();
  train->add_option("--pattern", options.pattern, "how text is cut into words before")
      ->check(CLI::IsMember(trainable_patterns()))
      ->capture_default_str();
  train->add_option("--special", options.special_tokens, "a special token; the first one ends a text")
      ->check([](const std::string& token) { return std::string(token.empty() ? "expected a token" : ""); });
  train->add_option("--min-frequency", options.min_frequency, "merge no pair that is rarer")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  train->add_flag("--by-lines", request->by_lines, "each line is a text of its own, as in Hugging Face's train(files)");
  verbs.push_back({train, "tokenizer train my/text --vocab 16384 --special \"<|endoftext|>\" --out my/tokenizer",
                   [request] { return tokenizer_train_verb(*request); }});
}

void add_encode(CLI::App* tokenizer, std::vector<Verb>& verbs) {
  CLI::App* encode = tokenizer->add_subcommand("encode", "Print the token ids of a text");
  const auto request = std::make_shared<TokenizerEncodeRequest>();
  encode->add_option("tokenizer", request->tokenizer, kTokenizer)->required();
  CLI::Option* const file = encode->add_option("file", request->file, "text to encode");
  encode->add_option("--text", request->text, "text to encode, instead of a file")->excludes(file);
  encode->add_option("--out", request->output, "write the ids to this file instead, as int32");
  encode->add_flag("--add-special-tokens", request->options.add_special_tokens,
                   "with those that the tokenizer puts around a text");
  encode->add_flag("--special-tokens-as-text", request->options.special_tokens_as_text,
                   "\"<|endoftext|>\" in the text is text like any other");
  verbs.push_back({encode, "tokenizer encode my/tokenizer --text \"Hello\"",
                   [request] { return tokenizer_encode_verb(*request); }});
}

void add_decode(CLI::App* tokenizer, std::vector<Verb>& verbs) {
  CLI::App* decode = tokenizer->add_subcommand("decode", "Print the text of token ids");
  const auto request = std::make_shared<TokenizerDecodeRequest>();
  decode->add_option("tokenizer", request->tokenizer, kTokenizer)->required();
  decode->add_option("ids", request->ids, "token ids")->required();
  decode->add_flag("--skip-special-tokens", request->options.skip_special_tokens, "leave special tokens out");
  verbs.push_back(
      {decode, "tokenizer decode my/tokenizer 464 2159", [request] { return tokenizer_decode_verb(*request); }});
}

void add_tokenize(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* tokenize =
      app.add_subcommand("tokenize", "Turn text, JSONL and Parquet files into token files to train on");
  const auto request = std::make_shared<TokenizeRequest>();
  tokenize
      ->add_option("inputs", request->inputs,
                   "files, patterns, folders; lines of *.jsonl and *.jsonl.zst, and rows of *.parquet, are texts")
      ->required();
  tokenize->add_option("--tokenizer", request->tokenizer, kTokenizer)->required();
  tokenize->add_option("--out", request->output, "folder for the token files, which must not be there yet")->required();
  tokenize->add_option("--field", request->field, "of a line of JSON; the column of Parquet")->capture_default_str();
  std::vector<std::string> templates = chat_template_names();
  templates.emplace_back("auto");
  tokenize
      ->add_option("--chat", request->chat,
                   "lines are conversations, {\"messages\": [...]}, in this template; auto: the tokenizer's")
      ->check(CLI::IsMember(templates));
  tokenize->add_option("--end-of-text", request->end_of_text, "the token behind each text; otherwise the tokenizer's");
  tokenize->add_option("--shard-tokens", request->shard_tokens, "tokens in a file")
      ->check(CLI::Range(int64_t{1}, int64_t{2'000'000'000}))
      ->capture_default_str();
  tokenize->add_option("--bad-lines", request->most_bad_lines, "skip up to this many lines that are not valid")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  tokenize->add_flag("--special-tokens-as-text", request->special_tokens_as_text,
                     "\"<|endoftext|>\" in a text is text like any other");
  verbs.push_back({tokenize, "tokenize my/text --tokenizer my/tokenizer --out my/tokens",
                   [request] { return tokenize_verb(*request); }});
}

}  // namespace

void add_text_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_tokenize(app, verbs);
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Train, use and show a tokenizer");
  tokenizer->require_subcommand(1);
  add_train(tokenizer, verbs);
  add_encode(tokenizer, verbs);
  add_decode(tokenizer, verbs);
  CLI::App* show = tokenizer->add_subcommand("show", "Show kind, size and special tokens of a tokenizer");
  const auto path = std::make_shared<std::string>();
  show->add_option("tokenizer", *path, kTokenizer)->required();
  verbs.push_back({show, "tokenizer show my/tokenizer", [path] { return tokenizer_show_verb(*path); }});
}

}  // namespace mantissa
