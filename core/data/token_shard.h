// Token shards: safetensors files of tokens that know where documents begin, as `mantissa tokenize` writes them.
//
//   tokens     U8, U16 or I32, the narrowest that holds the vocabulary
//   documents  I64  index of each document's first token: 0, then ascending
//   loss_mask  U8   1: the token counts as a target, 0: it is only read; absent: all count
//
// The metadata names vocabulary and tokenizer, and has the chat template of conversations. Other tools read the file as
// any safetensors file.
#pragma once

#include "core/data/token_file.h"

namespace mantissa {

// Collects documents in memory and writes them as one shard.
class TokenShardWriter {
 public:
  // `tokenizer` identifies what made the tokens: a name or a hash. `chat_template`: in Jinja; empty for other texts.
  TokenShardWriter(int64_t vocab, std::string tokenizer, std::string chat_template = {});

  // Tokens in [0, vocab), at least one. `loss_mask`: 1 for tokens that count as targets, else 0; empty: all 1.
  void add(std::span<const int32_t> document, std::span<const uint8_t> loss_mask = {});
  int64_t tokens() const { return static_cast<int64_t>(bytes_.size()) / token_bytes_; }
  int64_t documents() const { return static_cast<int64_t>(starts_.size()); }
  void write(ByteSink& sink) const;  // ContractError if there is no document

 private:
  const int64_t vocab_;
  const std::string tokenizer_, chat_template_;
  const int token_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<int64_t> starts_;
  std::vector<uint8_t> loss_mask_;  // empty while all tokens count
};

bool starts_like_shard(const InputFile& file);  // whether the file starts as a safetensors file does

inline constexpr const char* kChatTemplateKey = "chat_template";  // of the metadata

TokenFile read_token_shard(InputFile file);  // DataError naming the file and the part that is not as above

}  // namespace mantissa
