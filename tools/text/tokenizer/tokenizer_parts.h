// The parts of a tokenizer.json around its model. DataError names the file and the key of an unsupported part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json_node.h"
#include "tools/text/tokenizer/normalizer.h"
#include "tools/text/tokenizer/pre_tokenizer.h"
#include "tools/text/tokenizer/regex.h"
#include "tools/text/tokenizer/token_texts.h"

namespace mantissa {

void read_normalizers(const std::optional<JsonNode>& normalizer, NormalizerSequence& out);

// `by_bytes`: ByteLevel is among them, and the model's symbols are bytes.
void read_pre_tokenizers(const std::optional<JsonNode>& pre_tokenizer, PreTokenizerSequence& out, bool& by_bytes);

// The ids before and after a text, of a vocabulary of `vocab_size`.
void read_template(const std::optional<JsonNode>& post_processor, int64_t vocab_size, std::vector<int32_t>& before,
                   std::vector<int32_t>& after);

// Makes a token's text out of its spelling in the vocabulary.
class TokenDecoder {
 public:
  TokenDecoder(const std::optional<JsonNode>& decoder, bool by_bytes, const JsonNode& root);
  std::string text_of(std::string_view token) const;
  const TokenTexts::Start& start() const { return start_; }

 private:
  void read(const JsonNode& decoder);

  bool by_bytes_ = false, byte_fallback_ = false, is_fused_ = false;
  std::vector<ReplaceNormalizer> replacements_;
  TokenTexts::Start start_;
};

}  // namespace mantissa
