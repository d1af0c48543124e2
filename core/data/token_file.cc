#include "core/data/token_file.h"

#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/check.h"
#include "core/base/round_up.h"
#include "core/base/thread_team.h"
#include "core/data/megatron_index.h"
#include "core/data/token_shard.h"
#include "core/io/files.h"

namespace mantissa {
namespace {

constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);

struct LlmcKind {
  int32_t magic, version;
  int token_bytes;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
// llm.c dates its magic numbers. A file that starts with another such date is an llm.c file, but no token data.
constexpr int32_t kLlmcMagicFirst = 20240000, kLlmcMagicLast = 20249999;
constexpr int32_t kLlmcVersionLast = 1000;

template <typename T>
T load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Calls f.template operator()<T>() with the unsigned type of this width.
template <typename F>
auto with_token_type(int bytes, const F& f) {
  if (bytes == 1) return f.template operator()<uint8_t>();
  if (bytes == 2) return f.template operator()<uint16_t>();
  return bytes == 4 ? f.template operator()<uint32_t>() : f.template operator()<uint64_t>();
}

std::vector<std::byte> read_bytes(const InputFile& file, uint64_t offset, uint64_t count) {
  std::vector<std::byte> bytes(count);
  or_throw<DataError>([&] { file.read(offset, bytes); });
  return bytes;
}

std::vector<std::byte> read_tokens(const TokenFile& tokens, int64_t index, int64_t count) {
  return read_bytes(tokens.file, tokens.offset_bytes + static_cast<uint64_t>(index * tokens.token_bytes),
                    static_cast<uint64_t>(count * tokens.token_bytes));
}

[[noreturn]] void fail_outside(const TokenFile& tokens, int64_t index, uint64_t token) {
  std::string advice = "that of the tokenizer, or data.layout if the file is of another kind";
  if (tokens.token_bytes == 1) advice = "256, which has all bytes";
  if (tokens.tokenizer_vocab > 0) {
    advice = fmt::format("{}, that of the file's tokenizer '{}'", tokens.tokenizer_vocab, tokens.tokenizer);
  }
  throw DataError(
      "{}: token {} at offset {} (token number {}) is outside of the vocabulary [0, {}); set model.vocab to {}",
      tokens.file.path(), token, tokens.offset_bytes + static_cast<uint64_t>(index * tokens.token_bytes), index,
      tokens.limit, advice);
}

bool starts_like_llmc(const InputFile& file) {
  if (file.size() < 2 * sizeof(int32_t)) return false;
  const std::vector<std::byte> start = read_bytes(file, 0, 2 * sizeof(int32_t));
  const auto magic = load<int32_t>(start.data(), 0), version = load<int32_t>(start.data(), 1);
  return magic >= kLlmcMagicFirst && magic <= kLlmcMagicLast && version >= 0 && version <= kLlmcVersionLast;
}

TokenFile llmc_file(InputFile file) {
  const uint64_t size = file.size();
  require<DataError>(size >= kLlmcHeaderBytes,
                     "{}: truncated: a token file of llm.c has a header of {} bytes, the file has {}", file.path(),
                     kLlmcHeaderBytes, size);
  const std::vector<std::byte> header = read_bytes(file, 0, 3 * sizeof(int32_t));
  const auto magic = load<int32_t>(header.data(), 0), version = load<int32_t>(header.data(), 1),
             count = load<int32_t>(header.data(), 2);
  const auto* kind = std::find_if(std::begin(kLlmcKinds), std::end(kLlmcKinds),
                                  [&](const LlmcKind& k) { return k.magic == magic && k.version == version; });
  require<DataError>(kind != std::end(kLlmcKinds),
                     "{}: bad magic at offset 0: expected 20240520 with version 1 (u16) or 20240801 with version 7 "
                     "(u32), got {} with version {}; if the file has no header, set data.layout",
                     file.path(), magic, version);
  const uint64_t expected =
      kLlmcHeaderBytes + static_cast<uint64_t>(std::max(count, 0)) * static_cast<uint64_t>(kind->token_bytes);
  require<DataError>(
      count >= 0 && size == expected,
      "{}: {}: the header at offset 8 counts {} tokens of {} bytes, which makes {} bytes, the file has {}", file.path(),
      size < expected ? "truncated" : "wrong size", count, kind->token_bytes, expected, size);
  require<DataError>(count > 0, "{}: the file has a header and no tokens", file.path());
  return {.file = std::move(file),
          .offset_bytes = kLlmcHeaderBytes,
          .token_bytes = kind->token_bytes,
          .count = count,
          .is_described = true};
}

TokenFile raw_file(InputFile file, int token_bytes) {
  const uint64_t size = file.size();
  require<DataError>(size % static_cast<uint64_t>(token_bytes) == 0,
                     "{}: truncated: tokens of {} bytes do not divide the {} bytes of the file", file.path(),
                     token_bytes, size);
  return {.file = std::move(file), .token_bytes = token_bytes, .count = static_cast<int64_t>(size) / token_bytes};
}

TokenLayout layout_of(const InputFile& file) {
  if (has_megatron_index(file.path())) return TokenLayout::kMegatron;
  if (starts_like_shard(file)) return TokenLayout::kShard;
  return starts_like_llmc(file) ? TokenLayout::kLlmc : TokenLayout::kRawU16;
}

constexpr int64_t kBlock = 1 << 16;  // tokens that a thread reads at once

int64_t blocks_of(const TokenFile& tokens) { return divide_up(tokens.count, kBlock); }

std::vector<std::byte> read_block(const TokenFile& tokens, int64_t block) {
  return read_tokens(tokens, block * kBlock, std::min(kBlock, tokens.count - block * kBlock));
}

// Takes a maximum of each block, which the compiler vectorises, and searches only a block with too large a maximum.
template <typename T>
void check_tokens(const TokenFile& tokens) {
  const auto limit = static_cast<uint64_t>(tokens.limit);
  std::atomic<int64_t> first_block = INT64_MAX;
  const auto tokens_of = [](const std::vector<std::byte>& bytes) {
    return static_cast<int64_t>(bytes.size() / sizeof(T));
  };
  parallel_for(blocks_of(tokens), [&](int64_t block) {
    const std::vector<std::byte> bytes = read_block(tokens, block);
    T largest = 0;
    for (int64_t i = 0; i < tokens_of(bytes); ++i) largest = std::max(largest, load<T>(bytes.data(), i));
    if (largest < limit) return;
    int64_t seen = first_block.load();
    while (block < seen && !first_block.compare_exchange_weak(seen, block)) {
    }
  });
  if (first_block.load() == INT64_MAX) return;
  const std::vector<std::byte> bytes = read_block(tokens, first_block.load());
  for (int64_t i = 0; i < tokens_of(bytes); ++i) {
    const T token = load<T>(bytes.data(), i);
    if (token >= limit) fail_outside(tokens, first_block.load() * kBlock + i, token);
  }
}

}  // namespace

void TokenFile::read(int64_t index, std::span<int32_t> out) const {
  const auto n = static_cast<int64_t>(out.size());
  const std::vector<std::byte> bytes = read_tokens(*this, index, n);
  with_token_type(token_bytes, [&]<typename T>() {
    for (int64_t i = 0; i < n; ++i) {
      const T token = load<T>(bytes.data(), i);
      if (token >= static_cast<uint64_t>(limit)) fail_outside(*this, index + i, token);
      out[static_cast<size_t>(i)] = static_cast<int32_t>(token);
    }
  });
}

void TokenFile::read_loss_mask(int64_t index, std::span<uint8_t> out) const {
  if (!mask_offset) {
    std::ranges::fill(out, uint8_t{1});
    return;
  }
  const auto bytes = read_bytes(file, *mask_offset + static_cast<uint64_t>(index), out.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
}

void TokenFile::check_vocabulary() const {
  const bool all_fit = token_bytes < 4 && limit >= int64_t{1} << (8 * token_bytes);
  if (all_fit) return;
  with_token_type(token_bytes, [&]<typename T>() { check_tokens<T>(*this); });
}

std::vector<int64_t> TokenFile::documents_by(int32_t end_of_text) const {
  std::vector<std::vector<int64_t>> found(static_cast<size_t>(blocks_of(*this)));
  with_token_type(token_bytes, [&]<typename T>() {
    parallel_for(blocks_of(*this), [&](int64_t block) {
      const std::vector<std::byte> bytes = read_block(*this, block);
      for (int64_t i = 0; i < static_cast<int64_t>(bytes.size() / sizeof(T)); ++i) {
        if (load<T>(bytes.data(), i) != static_cast<T>(end_of_text)) continue;
        const int64_t next = block * kBlock + i + 1;
        if (next < count) found[static_cast<size_t>(block)].push_back(next);
      }
    });
  });
  std::vector<int64_t> starts = {0};
  for (const std::vector<int64_t>& part : found) starts.insert(starts.end(), part.begin(), part.end());
  return starts;
}

TokenFile open_token_file(const std::string& path, TokenLayout layout, InputFile::Descriptor descriptor,
                          int64_t vocab) {
  InputFile file = or_throw<DataError>([&] { return InputFile(path, descriptor); });
  require<DataError>(file.size() > 0, "{}: the file is empty", path);
  const TokenLayout found = layout == TokenLayout::kAuto ? layout_of(file) : layout;
  TokenFile opened = found == TokenLayout::kLlmc       ? llmc_file(std::move(file))
                     : found == TokenLayout::kShard    ? read_token_shard(std::move(file))
                     : found == TokenLayout::kMegatron ? read_megatron_index(std::move(file))
                     : found == TokenLayout::kBytes    ? raw_file(std::move(file), 1)
                                                    : raw_file(std::move(file), found == TokenLayout::kRawU32 ? 4 : 2);
  opened.limit = std::min(opened.limit, vocab);
  return opened;
}

std::string token_file_of(const std::string& name, TokenLayout layout) {
  if (layout != TokenLayout::kAuto && layout != TokenLayout::kMegatron) return name;
  if (name.ends_with(kMegatronIndexSuffix)) {
    return name.substr(0, name.size() - std::string_view(kMegatronIndexSuffix).size()) + kMegatronDataSuffix;
  }
  const bool is_prefix = !file_exists(name) && file_exists(name + kMegatronIndexSuffix);
  return is_prefix ? name + kMegatronDataSuffix : name;
}

std::vector<std::byte> sample_of(const InputFile& file) {
  constexpr uint64_t kPieceBytes = 4096;
  if (file.size() <= 3 * kPieceBytes) return read_bytes(file, 0, file.size());
  std::vector<std::byte> sample;
  for (const uint64_t offset : {uint64_t{0}, file.size() / 2, file.size() - kPieceBytes}) {
    const std::vector<std::byte> piece = read_bytes(file, offset / 8 * 8, kPieceBytes);
    sample.insert(sample.end(), piece.begin(), piece.end());
  }
  return sample;
}

uint64_t hash_of(const InputFile& file, uint64_t seed) {
  constexpr uint64_t kSampleBytes = 4096;
  const uint64_t sample = std::min(kSampleBytes, file.size());
  const auto hash = XXH3_64bits_withSeed(read_bytes(file, 0, sample).data(), sample, seed ^ file.size());
  return XXH3_64bits_withSeed(read_bytes(file, file.size() - sample, sample).data(), sample, hash);
}

}  // namespace mantissa
