#include "tools/text/tokenizer_verbs.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>

#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "core/data/data_kind.h"
#include "core/io/files.h"
#include "tools/config/data_paths.h"

namespace mantissa {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void train(const TokenizerTrainRequest& request) {
  std::vector<MappedFile> files;
  for (const std::string& name : text_files(request.inputs)) {
    files.push_back(map_file<DataError>(name));
    const std::string packed =
        why_packed(files.back().bytes().first(std::min<size_t>(files.back().bytes().size(), 64)));
    require<DataError>(packed.empty(), "{}: {}", name, packed);
  }
  std::vector<std::string_view> texts;
  size_t bytes = 0;
  for (const MappedFile& file : files) {
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
  std::optional<MappedFile> file;
  if (request.file) file.emplace(map_file<DataError>(*request.file));
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
      fmt::format("  begin of text: {}\n  end of text:   {}\n", name_of(tokenizer->bos()), name_of(tokenizer->eos()));
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

}  // namespace

int tokenizer_train_verb(const TokenizerTrainRequest& request) {
  return run_reported([&] { train(request); });
}

int tokenizer_encode_verb(const TokenizerEncodeRequest& request) {
  return run_reported([&] { encode(request); });
}

int tokenizer_decode_verb(const TokenizerDecodeRequest& request) {
  return run_reported([&] {
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(request.tokenizer);
    print(tokenizer->decode(request.ids, request.options) + "\n");
  });
}

int tokenizer_show_verb(const std::string& tokenizer) {
  return run_reported([&] { show(tokenizer); });
}

}  // namespace mantissa
