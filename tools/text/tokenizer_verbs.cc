#include "tools/text/verbs.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/config/data_paths.h"
#include "tools/text/document_reader.h"
#include "tools/text/tokenizer/bpe_trainer.h"
#include "tools/text/tokenizer/tokenizer.h"
#include "tools/text/unpacker.h"

namespace mantissa {
namespace {

struct TokenizerTrainRequest {
  std::vector<std::string> inputs;  // files, patterns and folders
  std::string output;               // a folder
  bool by_lines = false;            // each line is a text of its own, with its end
  BpeTrainerOptions options;
};

struct TokenizerEncodeRequest {
  std::string tokenizer;
  std::optional<std::string> file, text;  // one of them
  std::string output;                     // a file of int32; empty: print the ids
  EncodeOptions options;
};

struct TokenizerDecodeRequest {
  std::string tokenizer;
  std::vector<int32_t> ids;
  DecodeOptions options;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void train(const TokenizerTrainRequest& request) {
  std::vector<TextFile> files;
  for (const std::string& name : text_files(request.inputs)) {
    files.emplace_back(name);
    const std::string doubt = why_no_single_text(name, files.back().text(), "text");
    if (!doubt.empty()) log_warn("{}: {}; the whole file is one text", name, doubt);
  }
  std::vector<std::string_view> texts;
  size_t bytes = 0;
  for (const TextFile& file : files) {
    std::string_view rest = file.text();
    bytes += rest.size();
    while (!rest.empty()) {
      const size_t line = request.by_lines ? std::min(rest.find('\n'), rest.size() - 1) + 1 : rest.size();
      texts.push_back(rest.substr(0, line));
      rest.remove_prefix(line);
    }
  }
  require<DataError>(bytes > 0, "the {} files hold no text", files.size());
  PendingOutput folder(PendingOutput::Kind::kFolder, request.output);
  const auto start = std::chrono::steady_clock::now();
  const TrainedBpe trained = train_bpe(texts, request.options);
  const double seconds = seconds_since(start);
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (!request.options.special_tokens.empty()) config["eos_token"] = request.options.special_tokens.front();
  write_file<DataError>(folder.partial() + "/tokenizer_config.json", config.dump(2) + "\n");
  write_file<DataError>(folder.partial() + "/tokenizer.json", to_tokenizer_json(trained, request.options));
  folder.finish();
  log_info("trained {} tokens with {} merges on {:.1f} MB in {:.1f} s: {}", trained.tokens.size(),
           trained.merges.size(), static_cast<double>(bytes) / 1e6, seconds, request.output);
  if (static_cast<int64_t>(trained.tokens.size()) < request.options.vocab) {
    log_warn("the text has no more pairs to merge: {} tokens instead of {}", trained.tokens.size(),
             request.options.vocab);
  }
}

void encode(const TokenizerEncodeRequest& request) {
  require<ConfigError>(request.file || request.text,
                       "encode: expected a file or --text, got neither: name a file, or give --text");
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(request.tokenizer);
  const double opened = seconds_since(start);
  std::optional<TextFile> file;
  if (request.file) file.emplace(*request.file);
  const std::string_view text = file ? file->text() : *request.text;
  std::vector<int32_t> ids;
  const auto begin = std::chrono::steady_clock::now();
  tokenizer->encode(text, ids, request.options);
  const double seconds = seconds_since(begin);
  if (request.output.empty()) {
    std::string line;
    for (const int32_t id : ids) fmt::format_to(std::back_inserter(line), "{}{}", line.empty() ? "" : " ", id);
    return print(line + "\n");
  }
  std::string bytes(ids.size() * sizeof(int32_t), '\0');
  std::memcpy(bytes.data(), ids.data(), bytes.size());
  write_file<DataError>(request.output, bytes);
  const auto megabytes = static_cast<double>(text.size()) / 1e6;
  log_info("{} tokens of {:.1f} MB in {:.3f} s ({:.1f} MB/s, {} threads; the tokenizer was read in {:.3f} s): {}",
           ids.size(), megabytes, seconds, megabytes / seconds, threads(), opened, request.output);
}

void show(const std::string& path) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(path);
  const auto name_of = [&](std::optional<int32_t> id) {
    return id ? fmt::format("{} {}", *id, legible(tokenizer->texts().text(*id))) : std::string("not named");
  };
  std::string text = fmt::format("{}: {}, {} tokens\n", path, tokenizer->kind(), tokenizer->vocab_size());
  text +=
      fmt::format("  start of text: {}\n  end of text:   {}\n", name_of(tokenizer->bos()), name_of(tokenizer->eos()));
  constexpr size_t kShown = 20;
  const std::vector<AddedToken>& added = tokenizer->added_tokens();
  text += fmt::format("  added tokens:  {}\n", added.size());
  for (size_t i = 0; i < std::min(added.size(), kShown); ++i) {
    text +=
        fmt::format("    {:>7} {}{}\n", added[i].id, legible(added[i].content), added[i].special ? " (special)" : "");
  }
  if (added.size() > kShown) text += fmt::format("    and {} more\n", added.size() - kShown);
  print(text);
}

void decode(const TokenizerDecodeRequest& request) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(request.tokenizer);
  // The command line's ids.
  print(with_place<ConfigError, DataError>("ids", [&] { return tokenizer->decode(request.ids, request.options); }) +
        "\n");
}

void add_train(CLI::App* tokenizer, std::vector<Verb>& verbs) {
  CLI::App* command = tokenizer->add_subcommand("train", "Train a byte-level BPE on text");
  const auto request = std::make_shared<TokenizerTrainRequest>();
  BpeTrainerOptions& options = request->options;
  command->add_option("inputs", request->inputs, "text files, patterns, folders; each file is one text")->required();
  command->add_option("--vocab", options.vocab, "tokens at most, with 256 bytes and special tokens")
      ->required()
      ->check(CLI::Range(int64_t{256}, int64_t{1} << 24));
  command->add_option("--out", request->output, "folder to make, with tokenizer.json and tokenizer_config.json")
      ->required();
  command->add_option("--pattern", options.pattern, "how text is cut into words before")
      ->check(CLI::IsMember(trainable_patterns()))
      ->capture_default_str();
  command
      ->add_option("--special", options.special_tokens,
                   "a special token; the first one ends a text; several times for several")
      ->allow_extra_args(false)
      ->check([](const std::string& token) { return std::string(token.empty() ? "expected a token" : ""); });
  command->add_option("--min-frequency", options.min_frequency, "merge no pair that is rarer")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command->add_flag("--by-lines", request->by_lines,
                    "each line is a text of its own, as in Hugging Face's train(files)");
  verbs.push_back({command, "tokenizer train my/text --vocab 16384 --special \"<|endoftext|>\" --out my/tokenizer",
                   [request] { return run_reported([&] { train(*request); }); }});
}

void add_encode(CLI::App* tokenizer, std::vector<Verb>& verbs) {
  CLI::App* command = tokenizer->add_subcommand("encode", "Print the token ids of a text");
  const auto request = std::make_shared<TokenizerEncodeRequest>();
  command->add_option("tokenizer", request->tokenizer, kTokenizerHelp)->required();
  CLI::Option* const file = command->add_option("file", request->file, "text to encode");
  command->add_option("--text", request->text, "text to encode, instead of a file")->excludes(file);
  command->add_option("--out", request->output, "write the ids to this file instead, as int32");
  command->add_flag("--add-special-tokens", request->options.add_special_tokens,
                    "with those that the tokenizer puts around a text");
  command->add_flag("--special-tokens-as-text", request->options.special_tokens_as_text,
                    "tokenize special tokens in the text as plain text");
  verbs.push_back({command, "tokenizer encode my/tokenizer --text \"Hello\"",
                   [request] { return run_reported([&] { encode(*request); }); }});
}

void add_decode(CLI::App* tokenizer, std::vector<Verb>& verbs) {
  CLI::App* command = tokenizer->add_subcommand("decode", "Print the text of token ids");
  const auto request = std::make_shared<TokenizerDecodeRequest>();
  command->add_option("tokenizer", request->tokenizer, kTokenizerHelp)->required();
  command->add_option("ids", request->ids, "token ids")->required();
  command->add_flag("--skip-special-tokens", request->options.skip_special_tokens, "leave special tokens out");
  verbs.push_back({command, "tokenizer decode my/tokenizer 464 2159",
                   [request] { return run_reported([&] { decode(*request); }); }});
}

}  // namespace

void add_text_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_tokenize(app, verbs);
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Train, use and show a tokenizer");
  tokenizer->require_subcommand(1);
  add_train(tokenizer, verbs);
  add_encode(tokenizer, verbs);
  add_decode(tokenizer, verbs);
  CLI::App* command = tokenizer->add_subcommand("show", "Show kind, size and special tokens of a tokenizer");
  const auto path = std::make_shared<std::string>();
  command->add_option("tokenizer", *path, kTokenizerHelp)->required();
  verbs.push_back({command, "tokenizer show my/tokenizer", [path] { return run_reported([&] { show(*path); }); }});
}

}  // namespace mantissa
