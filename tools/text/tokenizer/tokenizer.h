// Tokenizers: text to token ids and back. docs/tokenizers.md says which files are read, and how exactly.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/text/tokenizer/bpe.h"
#include "tools/text/tokenizer/pre_tokenizer.h"

namespace mantissa {

class JsonNode;

struct EncodeOptions {
  bool add_special_tokens = false;      // the file's tokens around each text, for example at its start
  bool special_tokens_as_text = false;  // "<|endoftext|>" in the text is plain text; also if `splits_special_tokens`
  bool has_marks = false;               // of turns, which must be tokens
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// A token that is found in the text as a whole, before it is cut into words: special and added ones.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;              // is looked for in normalized text
  bool single_word = false;             // only where no letter, digit or mark touches it
  bool lstrip = false, rstrip = false;  // takes the white space on its left, on its right
};

// {"content": "<s>", ...} in files of Hugging Face, but for the id. `is_special`: even if the object does not say so.
AddedToken read_added_token(const JsonNode& node, bool is_special);

struct TokenOrText {
  std::optional<int32_t> token{};
  std::string_view text{};  // where it is no token
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Contents must not be empty.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts valid UTF-8 at the tokens: the leftmost first, and the longest of several at the same place. Texts between
  // tokens are not empty. `skips_special`: special tokens are text.
  std::vector<TokenOrText> cut(std::string_view whole, bool skips_special) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // whether a token begins with the byte
};

// The text of each token, and how texts are joined.
class TokenTexts {
 public:
  // How the first token of a text differs from the others.
  struct Start {
    int strips_spaces = 0;      // so many spaces at the start of the text fall away
    bool drops_spaces = false;  // all spaces of the first token fall away
  };
  // The place in a text that is being decoded.
  struct Place {
    bool is_first = true;
    int spaces_left = 0;  // that fall away
  };

  void set_start(const Start& start) { start_ = start; }
  void set(int32_t id, std::string text, bool is_special);
  // The largest id + 1.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::string_view text(int32_t id) const { return at(id).text; }
  bool is_special(int32_t id) const { return at(id).is_special; }

  Place begin() const { return {.is_first = true, .spaces_left = start_.strips_spaces}; }
  // DataError if the id is none of the vocabulary. An id within it that no token has adds nothing.
  void append(int32_t id, Place& place, std::string& out) const;

 private:
  struct Token {
    std::string text;
    bool is_special = false;
  };
  const Token& at(int32_t id) const;

  std::vector<Token> tokens_;
  Start start_;
};

// The content of its files.
struct TokenizerParts {
  std::string kind;  // "byte-level BPE", to show
  TokenTexts texts;
  std::vector<AddedToken> added_tokens{};
  std::vector<Normalizer> normalizers{};
  std::vector<PreTokenizer> pre_tokenizers{};
  std::unique_ptr<Bpe> bpe{};                      // null: the file holds what decoding needs only
  std::vector<int32_t> ids_before{}, ids_after{};  // of a text, with add_special_tokens
  std::optional<int32_t> bos{}, eos{};             // where the files name them
  std::optional<bool> adds_prefix_space{};         // whatever ByteLevel says
  int64_t configured = 0;                          // the last ids: of tokens that only tokenizer_config.json names
  std::string space = " ";                         // as the pre-tokenizers meet it
  bool splits_special_tokens = false;              // in texts, which hold them as plain text
  std::string path{};
};

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);

  // Appends the ids of UTF-8 text. Bytes that are no UTF-8 count as U+FFFD, as with Python's errors="replace". Thread
  // safe; a large text is encoded by all threads of the caller. DataError if the file holds what decoding needs only,
  // or for marks of turns if they would be plain text.
  void encode(std::string_view text, std::vector<int32_t>& ids, EncodeOptions options = {}) const;
  // The bytes of the tokens; special tokens give their content. DataError for an id that is not in the vocabulary.
  std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  // The id of a token with this text, for example a special token's.
  std::optional<int32_t> id_of(std::string_view content) const;
  int64_t vocab_size() const { return parts_.texts.size(); }  // the largest id + 1
  // Without tokens that only tokenizer_config.json names: a model may lack their ids.
  int64_t own_vocab_size() const { return vocab_size() - parts_.configured; }
  const TokenTexts& texts() const { return parts_.texts; }
  const std::string& kind() const { return parts_.kind; }
  const std::vector<AddedToken>& added_tokens() const { return parts_.added_tokens; }
  std::optional<int32_t> bos() const { return parts_.bos; }
  std::optional<int32_t> eos() const { return parts_.eos; }

 private:
  void encode_part(const TokenOrText& part, bool is_start, bool tokens_as_text, std::vector<int32_t>& ids) const;
  void encode_piece(const Piece& piece, std::vector<int32_t>& ids) const;

  const TokenizerParts parts_;
  AddedTokenMatcher tokens_in_text_, tokens_in_normalized_text_;
  bool is_cut_at_spaces_;  // a text may be cut before a space where another character precedes it
};

// A folder with a tokenizer.json, or one of these files: *.json (a tokenizer.json), *.tiktoken, llm.c's *.bin (decoding
// only). DataError that names file and key if it cannot be read or needs something that is not supported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

// Hugging Face's tokenizer.json, for models of the kind BPE. DataError naming file and key if it cannot be read or
// needs something unsupported. A tokenizer_config.json beside it names the tokens that begin and end a text, and more.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path);

// Adds the tokens in the folder's tokenizer_config.json to `parts.added_tokens`, with the ids of transformers: in the
// vocabulary, which holds ids below `vocab_size`, or the next id. DataError naming file and key.
void add_configured_tokens(const std::string& folder, const TokenMap& vocab, int64_t vocab_size, TokenizerParts& parts);

// tiktoken's file: a line for each token, its bytes in base64 and its rank. The name of the file determines the pattern
// and special tokens: cl100k*, o200k*, r50k*, p50k*, gpt2*, qwen*. DataError naming file and line for another name, or
// if it cannot be read.
std::unique_ptr<Tokenizer> open_tiktoken(const std::string& path);

// A large text in parts that are cut into the same words: before a `border` after neither a border nor a space.
std::vector<Piece> chunks_of(const Piece& piece, const std::string& border);

// Decodes token by token, as they are generated, and holds back the start of a character until it is whole.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer) : texts_(tokenizer.texts()), place_(texts_.begin()) {}
  // The text that the token completes. All results together are what decode() gives.
  std::string add(int32_t id);
  // The bytes that were held back.
  std::string finish() { return std::exchange(held_, {}); }

 private:
  const TokenTexts& texts_;
  TokenTexts::Place place_;
  std::string held_;
};

}  // namespace mantissa
