// The tokenizer that tokenizer.json and tiktoken files describe: added tokens, normalizers, pre-tokenizers, BPE.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/text/tokenizer/bpe.h"
#include "tools/text/tokenizer/normalizer.h"
#include "tools/text/tokenizer/pre_tokenizer.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

struct BpeTokenizerParts {
  std::string kind;
  TokenTexts texts;
  std::vector<AddedToken> added_tokens;
  NormalizerSequence normalizer;
  PreTokenizerSequence pre_tokenizer;
  std::unique_ptr<Bpe> bpe;
  std::vector<int32_t> ids_before, ids_after;  // of a text, with add_special_tokens
  std::optional<int32_t> bos, eos;
  std::string space = " ";  // as the pre-tokenizers meet it
};

// A large text in parts that are cut into the same words: before a `border` after neither a border nor a space.
std::vector<Piece> chunks_of(const Piece& piece, const std::string& border);

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts);
  void encode(std::string_view text, std::vector<int32_t>& ids, EncodeOptions options) const override;
  std::optional<int32_t> id_of(std::string_view content) const override;

 private:
  struct Part {
    Piece piece;
    std::optional<int32_t> token;  // instead of the piece
  };
  void encode_part(const Part& part, bool tokens_as_text, std::vector<int32_t>& ids) const;
  void encode_piece(const Piece& piece, std::vector<int32_t>& ids) const;

  NormalizerSequence normalizer_;
  PreTokenizerSequence pre_tokenizer_;
  std::unique_ptr<Bpe> bpe_;
  std::vector<int32_t> ids_before_, ids_after_;
  AddedTokenMatcher tokens_in_text_, tokens_in_normalized_text_;
  std::string border_;  // a text may be cut before it where another character precedes it; empty: never
};

}  // namespace mantissa
