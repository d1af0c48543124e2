#include "tools/text/tokenizer/llmc_tokenizer.h"

#include <array>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/io/files.h"

namespace mantissa {
namespace {

// Source of the layout: llm.c, train_gpt2.py, write_tokenizer(). Version 1 has no token that ends a text.
constexpr int32_t kMagic = 20240328;
constexpr size_t kHeaderInts = 256;

class LlmcTokenizer : public Tokenizer {
 public:
  LlmcTokenizer(std::string path, TokenTexts texts, std::optional<int32_t> eos) : path_(std::move(path)) {
    texts_ = std::move(texts);
    kind_ = "llm.c's, for decoding only";
    eos_ = eos;
    if (eos) added_tokens_.push_back({.content = std::string(texts_.text(*eos)), .id = *eos, .special = true});
  }
  void encode(std::string_view, std::vector<int32_t>&, EncodeOptions) const override {
    throw DataError(path_ +
                    ": llm.c's tokenizer file has no merges and cannot encode text; name a tokenizer.json or a "
                    ".tiktoken file");
  }
  std::optional<int32_t> id_of(std::string_view content) const override {
    for (int32_t id = 0; id < static_cast<int32_t>(vocab_size()); ++id) {
      if (texts_.text(id) == content) return id;
    }
    return std::nullopt;
  }

 private:
  std::string path_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_llmc_tokenizer(const std::string& path) {
  const MappedFile file = map_file<DataError>(path);
  std::string_view rest = file.text();
  std::array<int32_t, kHeaderInts> header{};
  require<DataError>(rest.size() >= sizeof header,
                     "{}: no tokenizer of llm.c: expected a header of {} bytes, got {} bytes", path, sizeof header,
                     rest.size());
  std::memcpy(header.data(), rest.data(), sizeof header);
  rest.remove_prefix(sizeof header);
  require<DataError>(header[0] == kMagic && (header[1] == 1 || header[1] == 2),
                     "{}: no tokenizer of llm.c: expected magic {} and version 1 or 2, got {} and {}", path, kMagic,
                     header[0], header[1]);
  const int32_t count = header[2];
  TokenTexts texts;
  for (int32_t id = 0; id < count; ++id) {
    const size_t length = rest.empty() ? 0 : static_cast<unsigned char>(rest[0]);
    require<DataError>(rest.size() > length, "{}: ends within token {} of {}; copy the file again", path, id, count);
    texts.set(id, std::string(rest.substr(1, length)), header[1] == 2 && id == header[3]);
    rest.remove_prefix(1 + length);
  }
  require<DataError>(count > 0 && rest.empty(), "{}: expected {} tokens as its header says, got {} more bytes", path,
                     count, rest.size());
  require<DataError>(header[1] == 1 || (header[3] >= 0 && header[3] < count),
                     "{}: the token that ends a text must be 0 to {}, got {}", path, count - 1, header[3]);
  return std::make_unique<LlmcTokenizer>(path, std::move(texts),
                                         header[1] == 2 ? std::optional(header[3]) : std::nullopt);
}

}  // namespace mantissa
