// Tokenizers: text to token ids and back. docs/tokenizers.md says which files are read, and how exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/tokenizer/added_tokens.h"
#include "tools/text/tokenizer/token_texts.h"

namespace mantissa {

struct EncodeOptions {
  bool add_special_tokens = false;      // the file's tokens around each text, for example at its start
  bool special_tokens_as_text = false;  // "<|endoftext|>" in the text is text like any other
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of UTF-8 text. Bytes that are no UTF-8 count as U+FFFD, as with Python's errors="replace". Thread
  // safe; a large text is encoded by all threads of the caller. DataError if the file holds what decoding needs only.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids, EncodeOptions options = {}) const = 0;
  // The bytes of the tokens; special tokens give their content. DataError for an id that is not in the vocabulary.
  std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  // The id of a token with this text, for example a special token's.
  virtual std::optional<int32_t> id_of(std::string_view content) const = 0;
  int64_t vocab_size() const { return texts_.size(); }  // the largest id + 1
  const TokenTexts& texts() const { return texts_; }

  const std::string& kind() const { return kind_; }  // "byte-level BPE", to show
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  // Where the files name them.
  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return eos_; }

 protected:
  TokenTexts texts_;
  std::string kind_;
  std::vector<AddedToken> added_tokens_;
  std::optional<int32_t> bos_, eos_;
};

// A folder with a tokenizer.json, or one of these files: *.json (a tokenizer.json), *.tiktoken, llm.c's *.bin (decoding
// only). DataError that names file and key if it cannot be read or needs something that is not supported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

// The ids of each text, by all threads of the caller.
std::vector<std::vector<int32_t>> encode_all(const Tokenizer& tokenizer, std::span<const std::string_view> texts,
                                             EncodeOptions options = {});

// Decodes token by token, as they are generated, and holds back the start of a character until it is whole.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options), place_(tokenizer.texts().begin()) {}
  // The text that the token completes. All results together are what decode() gives.
  std::string add(int32_t id);
  // The bytes that were held back.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  TokenTexts::Place place_;
  std::string held_;
};

}  // namespace mantissa
