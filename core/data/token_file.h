// Token files: their layouts, and reading from them.
#pragma once

#include "core/io/files.h"

namespace mantissa {

// How a file holds its tokens. Sources: llm.c's dev/data/data_common.py and llmc/dataloader.h; nanoGPT's
// data/openwebtext/prepare.py; Megatron's megatron/core/datasets/indexed_dataset.py.
enum class TokenLayout : uint8_t {
  kBytes,  // every byte is a token (vocabulary 256)
  kAuto,   // a token file: Megatron's if an .idx file lies beside it, else by its first bytes a shard or llm.c's, else
           // headerless u16
  kLlmc,   // llm.c: int32[256] header (magic 20240520, version 1: u16; magic 20240801, version 7: u32), then the tokens
  kRawU16,  // nanoGPT: u16 from the first byte on
  kRawU32,
  kMegatron,  // a .bin file of tokens and an .idx file: see megatron_index.h
  kShard,     // our own: see token_shard.h
};

struct TokenFile {
  InputFile file;
  uint64_t offset_bytes = 0;  // of its first token
  int token_bytes = 1;        // 1, 2, 4 or 8
  int64_t count = 0;
  int64_t limit = INT64_MAX;              // tokens are below: the vocabulary, and what a signed type holds
  bool is_described = false;              // by a header or an index: its kind is no guess
  std::vector<int64_t> documents{};       // first token of each, if the file marks them; ascending, the first is 0
  std::optional<uint64_t> mask_offset{};  // of the byte that says whether the first token counts
  std::string tokenizer{};                // that made it; empty: not known
  int64_t tokenizer_vocab = 0;            // its number of tokens; 0: not known
  int64_t first = 0;                      // index of its first token in the data

  // Reads tokens [index, index + out.size()). DataError naming file and offset if the file has become shorter or holds
  // a token that is not below `limit`.
  void read(int64_t index, std::span<int32_t> out) const;
  // Whether each of these tokens counts as a target: 0 or not 0.
  void read_loss_mask(int64_t index, std::span<uint8_t> out) const;
  // Scans the file with all threads; DataError naming the first token that is not below `limit`.
  void check_vocabulary() const;
  // Where documents begin if each ends with this token. Scans the file.
  std::vector<int64_t> documents_by(int32_t end_of_text) const;
};

// DataError naming the file if it is missing, empty, truncated or of another layout.
TokenFile open_token_file(const std::string& path, TokenLayout layout, InputFile::Descriptor descriptor, int64_t vocab);

// The file with the tokens of the data `name`: the .bin file of Megatron's two files.
std::string token_file_of(const std::string& name, TokenLayout layout);

// Some of the file's bytes: start, middle and end; each starts at a multiple of 8 bytes.
std::vector<std::byte> sample_of(const InputFile& file);
// Mixes the file's size and samples of its contents into the seed.
uint64_t hash_of(const InputFile& file, uint64_t seed);

}  // namespace mantissa
