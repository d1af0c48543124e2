// Token files: where a file's tokens start and how wide they are. Sources: llm.c's dev/data/data_common.py and
// llmc/dataloader.h; nanoGPT's data/openwebtext/prepare.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/io/mapped_file.h"

namespace mantissa {

// How a file holds its tokens.
enum class TokenLayout : uint8_t {
  kBytes,  // every byte is a token (vocabulary 256)
  kAuto,   // a token file: llm.c's if it starts with llm.c's magic, else headerless u16
  kLlmc,   // llm.c: int32[256] header (magic 20240520, version 1: u16; magic 20240801, version 7: u32), then the tokens
  kRawU16,  // nanoGPT: u16 from the first byte on
  kRawU32,
};

struct TokenFileShape {
  size_t offset_bytes = 0;
  int token_bytes = 1;
  int64_t count = 0;
};

// DataError naming the file for one that is empty, truncated or not of this layout.
TokenFileShape token_file_shape(const MappedFile& file, TokenLayout layout);

// DataError naming file, token and byte offset for the first token outside of [0, vocab).
void check_vocabulary(const MappedFile& file, const TokenFileShape& shape, int64_t vocab);

// Token number `index` of the file.
uint32_t token_at(const MappedFile& file, const TokenFileShape& shape, int64_t index);

}  // namespace mantissa
