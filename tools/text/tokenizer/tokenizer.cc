#include "tools/text/tokenizer/tokenizer.h"

#include <filesystem>
#include <utility>

#include "core/base/check.h"
#include "core/base/thread_team.h"
#include "tools/text/tokenizer/llmc_tokenizer.h"
#include "tools/text/tokenizer/tiktoken.h"
#include "tools/text/tokenizer/tokenizer_json.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::string text;
  TokenTexts::Place place = texts_.begin();
  for (const int32_t id : ids) {
    if (!options.skip_special_tokens || !texts_.is_special(id)) texts_.append(id, place, text);
  }
  return text;
}

std::string StreamingDecoder::add(int32_t id) {
  if (!options_.skip_special_tokens || !tokenizer_.texts().is_special(id)) tokenizer_.texts().append(id, place_, held_);
  const size_t whole = held_.size() - incomplete_tail(held_);
  std::string text = held_.substr(0, whole);
  held_.erase(0, whole);
  return text;
}

std::string StreamingDecoder::finish() { return std::exchange(held_, {}); }

std::vector<std::vector<int32_t>> encode_all(const Tokenizer& tokenizer, std::span<const std::string_view> texts,
                                             EncodeOptions options) {
  std::vector<std::vector<int32_t>> ids(texts.size());
  parallel_for(static_cast<int64_t>(texts.size()), [&](int64_t i) {
    tokenizer.encode(texts[static_cast<size_t>(i)], ids[static_cast<size_t>(i)], options);
  });
  return ids;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    const std::string file = path + (path.ends_with('/') ? "" : "/") + "tokenizer.json";
    require<DataError>(
        fs::exists(file, ignored),
        "{}: the folder has no tokenizer.json{}; a folder needs one, other tokenizers are named as files: "
        "*.tiktoken, llm.c's *.bin",
        path, fs::exists(path + "/tokenizer.model", ignored) ? " but a tokenizer.model" : "");
    return open_tokenizer_json(file);
  }
  const std::string suffix = fs::path(path).extension().string();
  if (suffix == ".json") return open_tokenizer_json(path);
  if (suffix == ".tiktoken") return open_tiktoken(path);
  if (suffix == ".bin") return open_llmc_tokenizer(path);
  throw DataError(
      fmt::format("{}: {}; a tokenizer is a folder with a tokenizer.json, or a file *.json, *.tiktoken or *.bin "
                  "(llm.c's)",
                  path, fs::exists(path, ignored) ? "the kind of the file is not known" : "does not exist"));
}

}  // namespace mantissa
