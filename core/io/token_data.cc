#include "core/io/token_data.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>

#include "core/base/check.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

using Segment = TokenData::Segment;

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
  return bytes == 2 ? f.template operator()<uint16_t>() : f.template operator()<uint32_t>();
}

uint32_t token_at(const Segment& segment, int64_t index) {
  const std::byte* const data = segment.file.bytes().data() + segment.offset_bytes;
  return with_token_type(segment.token_bytes, [&]<typename T>() -> uint32_t { return load<T>(data, index); });
}

bool starts_like_llmc(std::span<const std::byte> bytes) {
  if (bytes.size() < 2 * sizeof(int32_t)) return false;
  const auto magic = load<int32_t>(bytes.data(), 0), version = load<int32_t>(bytes.data(), 1);
  return magic >= kLlmcMagicFirst && magic <= kLlmcMagicLast && version >= 0 && version <= kLlmcVersionLast;
}

Segment llmc_segment(MappedFile file) {
  const size_t size = file.bytes().size();
  require<DataError>(size >= kLlmcHeaderBytes,
                     "{}: truncated: a token file of llm.c has a header of {} bytes, the file has {}", file.path(),
                     kLlmcHeaderBytes, size);
  const std::byte* const header = file.bytes().data();
  const auto magic = load<int32_t>(header, 0), version = load<int32_t>(header, 1), count = load<int32_t>(header, 2);
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
  return {.file = std::move(file), .offset_bytes = kLlmcHeaderBytes, .token_bytes = kind->token_bytes, .count = count};
}

Segment raw_segment(MappedFile file, int token_bytes) {
  const size_t size = file.bytes().size();
  require<DataError>(size % static_cast<size_t>(token_bytes) == 0,
                     "{}: truncated: tokens of {} bytes do not divide the {} bytes of the file", file.path(),
                     token_bytes, size);
  return {.file = std::move(file), .token_bytes = token_bytes, .count = static_cast<int64_t>(size) / token_bytes};
}

// DataError naming the file if it is empty, truncated or of another layout.
Segment open_segment(MappedFile file, TokenLayout layout) {
  require<DataError>(!file.bytes().empty(), "{}: the file is empty", file.path());
  const bool is_llmc = layout == TokenLayout::kLlmc || (layout == TokenLayout::kAuto && starts_like_llmc(file.bytes()));
  if (is_llmc) return llmc_segment(std::move(file));
  return raw_segment(std::move(file), layout == TokenLayout::kBytes ? 1 : layout == TokenLayout::kRawU32 ? 4 : 2);
}

// The first index in [0, count) whose token is >= vocab, or count. Takes a branch-free maximum of each block, which the
// compiler vectorises, and searches a block only if its maximum is too large.
template <typename T>
int64_t first_outside(const std::byte* data, int64_t count, int64_t vocab) {
  constexpr int64_t kBlock = 1 << 16;
  std::atomic<int64_t> first_block = INT64_MAX;
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  parallel_for(blocks, [&](int64_t block) {
    const int64_t end = std::min(count, (block + 1) * kBlock);
    T largest = 0;
    for (int64_t i = block * kBlock; i < end; ++i) largest = std::max(largest, load<T>(data, i));
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

void check_vocabulary(const Segment& segment, int64_t vocab) {
  const bool all_fit = segment.token_bytes < 4 && vocab >= int64_t{1} << (8 * segment.token_bytes);
  if (all_fit) return;
  const int64_t index = with_token_type(segment.token_bytes, [&]<typename T>() {
    return first_outside<T>(segment.file.bytes().data() + segment.offset_bytes, segment.count, vocab);
  });
  if (index == segment.count) return;
  throw DataError(fmt::format(
      "{}: token {} at offset {} (token number {}) is outside of the vocabulary [0, {}); set model.vocab to that of "
      "the tokenizer, or data.layout if the file is of another kind",
      segment.file.path(), token_at(segment, index),
      segment.offset_bytes + static_cast<size_t>(index * segment.token_bytes), index, vocab));
}

}  // namespace

TokenData::TokenData(const TokenDataOptions& options) {
  MANTISSA_CHECK(options.vocab > 0, "[token_data] expected vocab > 0, got {}", options.vocab);
  require<DataError>(!options.files.empty(), "no data files are named; set data.train to files or patterns");
  std::map<std::string, bool> sources;  // path to whether only patterns named it; sorted, each once
  for (const std::string& pattern : options.files) {
    const std::vector<std::string> matches = expand_glob(pattern);
    require<DataError>(!matches.empty(), "no data file matches the pattern '{}'", pattern);
    for (const std::string& path : matches) {
      const bool from_pattern = has_wildcard(pattern);
      sources.try_emplace(path, from_pattern).first->second &= from_pattern;
    }
  }
  for (const auto& [path, from_pattern] : sources) add_file(path, options, from_pattern);
  require<DataError>(!segments_.empty(), "all {} data files are empty, the first is {}", sources.size(),
                     sources.begin()->first);
}

void TokenData::add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern) {
  MappedFile file = map_file<DataError>(path);
  // A folder of sources may hold an empty file; a token file without tokens is a mistake.
  if (file.bytes().empty() && options.layout == TokenLayout::kBytes && from_pattern) {
    skipped_empty_files_.push_back(path);
    return;
  }
  Segment& segment = segments_.emplace_back(open_segment(std::move(file), options.layout));
  check_vocabulary(segment, options.vocab);
  segment.first = total_tokens_;
  total_tokens_ += segment.count;
}

void TokenData::read(int64_t begin, std::span<int32_t> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  MANTISSA_CHECK(begin >= 0 && begin + count <= total_tokens_, "[token_data] tokens [{}, {}) are outside of {} tokens",
                 begin, begin + count, total_tokens_);
  auto segment = std::upper_bound(segments_.begin(), segments_.end(), begin,
                                  [](int64_t index, const Segment& s) { return index < s.first; });
  if (count > 0) --segment;
  for (int64_t done = 0; done < count; ++segment) {
    const int64_t from = begin + done - segment->first;
    const int64_t take = std::min(count - done, segment->count - from);
    for (int64_t i = 0; i < take; ++i) {
      out[static_cast<size_t>(done + i)] = static_cast<int32_t>(token_at(*segment, from + i));
    }
    done += take;
  }
}

uint64_t TokenData::fingerprint() const {
  constexpr size_t kSampleBytes = 4096;
  uint64_t hash = static_cast<uint64_t>(total_tokens_);
  for (const Segment& segment : segments_) {
    const auto bytes = segment.file.bytes();
    const size_t sample = std::min(kSampleBytes, bytes.size());
    hash = XXH3_64bits_withSeed(bytes.data(), sample, hash ^ bytes.size());
    hash = XXH3_64bits_withSeed(bytes.data() + bytes.size() - sample, sample, hash);
  }
  return hash;
}

TokenRange TokenRange::whole(std::shared_ptr<const TokenData> data) {
  const int64_t tokens = data->tokens();
  return {std::move(data), 0, tokens};
}

TokenSplit split_tail(std::shared_ptr<const TokenData> data, double validation_fraction) {
  MANTISSA_CHECK(validation_fraction >= 0.0 && validation_fraction < 1.0,
                 "[token_data] validation fraction must be in [0, 1), got {}", validation_fraction);
  const int64_t tokens = data->tokens();
  const int64_t validation = static_cast<int64_t>(std::floor(static_cast<double>(tokens) * validation_fraction));
  return {{data, 0, tokens - validation}, {data, tokens - validation, tokens}};
}

}  // namespace mantissa
