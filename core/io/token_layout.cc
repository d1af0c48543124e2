#include "core/io/token_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/error.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);

struct LlmcKind {
  int32_t magic, version;
  int token_bytes;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
// llm.c dates its magic numbers; a file that starts with another of them is some other llm.c file, not token data.
constexpr int32_t kLlmcMagicFirst = 20240000, kLlmcMagicLast = 20249999;
constexpr int32_t kLlmcVersionLast = 1000;

int32_t header_word(const MappedFile& file, size_t index) {
  int32_t word = 0;
  std::memcpy(&word, file.bytes().data() + index * sizeof(word), sizeof(word));
  return word;
}

bool starts_like_llmc(const MappedFile& file) {
  if (file.bytes().size() < 2 * sizeof(int32_t)) return false;
  const int32_t magic = header_word(file, 0), version = header_word(file, 1);
  return magic >= kLlmcMagicFirst && magic <= kLlmcMagicLast && version >= 0 && version <= kLlmcVersionLast;
}

TokenFileShape llmc_shape(const MappedFile& file) {
  const size_t size = file.bytes().size();
  if (size < kLlmcHeaderBytes) {
    throw DataError(fmt::format("{}: truncated: a token file of llm.c has a header of {} bytes, the file has {}",
                                file.path(), kLlmcHeaderBytes, size));
  }
  const int32_t magic = header_word(file, 0), version = header_word(file, 1), count = header_word(file, 2);
  const auto* kind = std::find_if(std::begin(kLlmcKinds), std::end(kLlmcKinds),
                                  [&](const LlmcKind& k) { return k.magic == magic && k.version == version; });
  if (kind == std::end(kLlmcKinds)) {
    throw DataError(
        fmt::format("{}: bad magic at offset 0: expected 20240520 with version 1 (u16) or 20240801 with version "
                    "7 (u32), got {} with version {}; if the file has no header, set data.layout",
                    file.path(), magic, version));
  }
  const uint64_t expected =
      kLlmcHeaderBytes + static_cast<uint64_t>(std::max(count, 0)) * static_cast<uint64_t>(kind->token_bytes);
  if (count < 0 || size != expected) {
    throw DataError(fmt::format(
        "{}: {}: the header at offset 8 counts {} tokens of {} bytes, which makes {} bytes, the file has {}",
        file.path(), size < expected ? "truncated" : "wrong size", count, kind->token_bytes, expected, size));
  }
  return {kLlmcHeaderBytes, kind->token_bytes, count};
}

TokenFileShape raw_shape(const MappedFile& file, int token_bytes) {
  const size_t size = file.bytes().size();
  if (size % static_cast<size_t>(token_bytes) != 0) {
    throw DataError(fmt::format("{}: truncated: tokens of {} bytes do not divide the {} bytes of the file", file.path(),
                                token_bytes, size));
  }
  return {0, token_bytes, static_cast<int64_t>(size) / token_bytes};
}

template <typename T>
uint32_t load(const std::byte* data, int64_t index) {
  T token;
  std::memcpy(&token, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return token;
}

// The first index in [0, count) whose token is >= vocab, or count. A branch-free maximum per block, so that the
// compiler vectorises it; a block is searched only if it fails.
template <typename T>
int64_t first_outside(const std::byte* data, int64_t count, int64_t vocab) {
  constexpr int64_t kBlock = 1 << 16;
  std::atomic<int64_t> first_block = INT64_MAX;
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  parallel_for(blocks, [&](int64_t block) {
    const int64_t end = std::min(count, (block + 1) * kBlock);
    T largest = 0;
    for (int64_t i = block * kBlock; i < end; ++i) largest = std::max(largest, static_cast<T>(load<T>(data, i)));
    if (static_cast<int64_t>(largest) < vocab) return;
    int64_t seen = first_block.load();
    while (block < seen && !first_block.compare_exchange_weak(seen, block)) {
    }
  });
  if (first_block.load() == INT64_MAX) return count;
  int64_t index = first_block.load() * kBlock;
  while (static_cast<int64_t>(load<T>(data, index)) < vocab) ++index;
  return index;
}

}  // namespace

TokenFileShape token_file_shape(const MappedFile& file, TokenLayout layout) {
  if (file.bytes().empty()) throw DataError(fmt::format("{}: the file is empty", file.path()));
  TokenFileShape shape;
  switch (layout) {
    case TokenLayout::kBytes:
      shape = raw_shape(file, 1);
      break;
    case TokenLayout::kRawU16:
      shape = raw_shape(file, 2);
      break;
    case TokenLayout::kRawU32:
      shape = raw_shape(file, 4);
      break;
    case TokenLayout::kLlmc:
      shape = llmc_shape(file);
      break;
    case TokenLayout::kAuto:
      shape = starts_like_llmc(file) ? llmc_shape(file) : raw_shape(file, 2);
      break;
  }
  if (shape.count == 0) throw DataError(fmt::format("{}: the file holds a header and no tokens", file.path()));
  return shape;
}

uint32_t token_at(const MappedFile& file, const TokenFileShape& shape, int64_t index) {
  const std::byte* data = file.bytes().data() + shape.offset_bytes;
  if (shape.token_bytes == 1) return load<uint8_t>(data, index);
  return shape.token_bytes == 2 ? load<uint16_t>(data, index) : load<uint32_t>(data, index);
}

void check_vocabulary(const MappedFile& file, const TokenFileShape& shape, int64_t vocab) {
  const bool all_fit = shape.token_bytes < 4 && vocab >= int64_t{1} << (8 * shape.token_bytes);
  if (all_fit) return;
  const std::byte* data = file.bytes().data() + shape.offset_bytes;
  const int64_t index = shape.token_bytes == 1   ? first_outside<uint8_t>(data, shape.count, vocab)
                        : shape.token_bytes == 2 ? first_outside<uint16_t>(data, shape.count, vocab)
                                                 : first_outside<uint32_t>(data, shape.count, vocab);
  if (index == shape.count) return;
  throw DataError(fmt::format(
      "{}: token {} at offset {} (token number {}) is outside of the vocabulary [0, {}); set model.vocab to that of "
      "the tokenizer, or data.layout if the file is of another kind",
      file.path(), token_at(file, shape, index), shape.offset_bytes + static_cast<size_t>(index * shape.token_bytes),
      index, vocab));
}

}  // namespace mantissa
