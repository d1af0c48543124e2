#include "core/io/token_data.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>

#include "core/base/check.h"
#include "core/base/thread_team.h"
#include "core/io/data_kind.h"

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

// As many files stay open as fit well below the usual limit of 1024, for training and validation data.
constexpr size_t kKeptOpen = 256;

InputFile open_file(const std::string& path, InputFile::Descriptor descriptor) {
  try {
    return {path, descriptor};
  } catch (const UnreadableFile& error) {
    throw DataError(error.what());
  }
}

std::vector<std::byte> read_bytes(const InputFile& file, uint64_t offset, uint64_t count) {
  std::vector<std::byte> bytes(count);
  try {
    file.read(offset, bytes);
  } catch (const UnreadableFile& error) {
    throw DataError(error.what());
  }
  return bytes;
}

std::vector<std::byte> read_tokens(const Segment& segment, int64_t index, int64_t count) {
  return read_bytes(segment.file, segment.offset_bytes + static_cast<uint64_t>(index * segment.token_bytes),
                    static_cast<uint64_t>(count * segment.token_bytes));
}

[[noreturn]] void fail_outside(const Segment& segment, int64_t index, uint32_t token, int64_t vocab) {
  throw DataError(fmt::format(
      "{}: token {} at offset {} (token number {}) is outside of the vocabulary [0, {}); set model.vocab to {}",
      segment.file.path(), token, segment.offset_bytes + static_cast<uint64_t>(index * segment.token_bytes), index,
      vocab,
      segment.token_bytes == 1 ? "256, which has all bytes"
                               : "that of the tokenizer, or data.layout if the file is of another kind"));
}

bool starts_like_llmc(const InputFile& file) {
  if (file.size() < 2 * sizeof(int32_t)) return false;
  const std::vector<std::byte> start = read_bytes(file, 0, 2 * sizeof(int32_t));
  const auto magic = load<int32_t>(start.data(), 0), version = load<int32_t>(start.data(), 1);
  return magic >= kLlmcMagicFirst && magic <= kLlmcMagicLast && version >= 0 && version <= kLlmcVersionLast;
}

Segment llmc_segment(InputFile file) {
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
  return {.file = std::move(file), .offset_bytes = kLlmcHeaderBytes, .token_bytes = kind->token_bytes, .count = count};
}

Segment raw_segment(InputFile file, int token_bytes) {
  const uint64_t size = file.size();
  require<DataError>(size % static_cast<uint64_t>(token_bytes) == 0,
                     "{}: truncated: tokens of {} bytes do not divide the {} bytes of the file", file.path(),
                     token_bytes, size);
  return {.file = std::move(file), .token_bytes = token_bytes, .count = static_cast<int64_t>(size) / token_bytes};
}

// DataError naming the file if it is empty, truncated or of another layout.
Segment open_segment(InputFile file, TokenLayout layout) {
  require<DataError>(file.size() > 0, "{}: the file is empty", file.path());
  const bool is_llmc = layout == TokenLayout::kLlmc || (layout == TokenLayout::kAuto && starts_like_llmc(file));
  if (is_llmc) return llmc_segment(std::move(file));
  return raw_segment(std::move(file), layout == TokenLayout::kBytes ? 1 : layout == TokenLayout::kRawU32 ? 4 : 2);
}

// DataError naming the first token that is >= vocab. Takes a branch-free maximum of each block, which the compiler
// vectorises, and searches a block only if its maximum is too large.
template <typename T>
void check_tokens(const Segment& segment, int64_t vocab) {
  constexpr int64_t kBlock = 1 << 16;
  std::atomic<int64_t> first_block = INT64_MAX;
  const int64_t blocks = (segment.count + kBlock - 1) / kBlock;
  const auto read_block = [&](int64_t block) {
    return read_tokens(segment, block * kBlock, std::min(kBlock, segment.count - block * kBlock));
  };
  const auto tokens_of = [](const std::vector<std::byte>& bytes) {
    return static_cast<int64_t>(bytes.size() / sizeof(T));
  };
  parallel_for(blocks, [&](int64_t block) {
    const std::vector<std::byte> bytes = read_block(block);
    T largest = 0;
    for (int64_t i = 0; i < tokens_of(bytes); ++i) largest = std::max(largest, load<T>(bytes.data(), i));
    if (static_cast<int64_t>(largest) < vocab) return;
    int64_t seen = first_block.load();
    while (block < seen && !first_block.compare_exchange_weak(seen, block)) {
    }
  });
  if (first_block.load() == INT64_MAX) return;
  const std::vector<std::byte> bytes = read_block(first_block.load());
  for (int64_t i = 0; i < tokens_of(bytes); ++i) {
    const T token = load<T>(bytes.data(), i);
    if (static_cast<int64_t>(token) >= vocab) fail_outside(segment, first_block.load() * kBlock + i, token, vocab);
  }
}

void check_vocabulary(const Segment& segment, int64_t vocab) {
  const bool all_fit = segment.token_bytes < 4 && vocab >= int64_t{1} << (8 * segment.token_bytes);
  if (all_fit) return;
  with_token_type(segment.token_bytes, [&]<typename T>() { check_tokens<T>(segment, vocab); });
}

// The file's start, middle and end; each starts at a multiple of 4 bytes.
std::vector<std::byte> sample_of(const InputFile& file) {
  constexpr uint64_t kPieceBytes = 4096;
  if (file.size() <= 3 * kPieceBytes) return read_bytes(file, 0, file.size());
  std::vector<std::byte> sample;
  for (const uint64_t offset : {uint64_t{0}, file.size() / 2, file.size() - kPieceBytes}) {
    const std::vector<std::byte> piece = read_bytes(file, offset / 4 * 4, kPieceBytes);
    sample.insert(sample.end(), piece.begin(), piece.end());
  }
  return sample;
}

// Mixes the file's size and samples of its contents into the seed.
uint64_t hash_of(const InputFile& file, uint64_t seed) {
  constexpr uint64_t kSampleBytes = 4096;
  const uint64_t sample = std::min(kSampleBytes, file.size());
  const auto hash = XXH3_64bits_withSeed(read_bytes(file, 0, sample).data(), sample, seed ^ file.size());
  return XXH3_64bits_withSeed(read_bytes(file, file.size() - sample, sample).data(), sample, hash);
}

}  // namespace

TokenData::TokenData(const TokenDataOptions& options) : vocab_(options.vocab) {
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
  fingerprint_ = static_cast<uint64_t>(total_tokens_);
  for (const Segment& segment : segments_) fingerprint_ = hash_of(segment.file, fingerprint_);
}

void TokenData::add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern) {
  InputFile file =
      open_file(path, segments_.size() < kKeptOpen ? InputFile::Descriptor::kKept : InputFile::Descriptor::kPerRead);
  // A folder of sources may hold an empty file; a token file without tokens is a mistake.
  if (file.size() == 0 && options.layout == TokenLayout::kBytes && from_pattern) {
    skipped_empty_files_.push_back(path);
    return;
  }
  Segment& segment = segments_.emplace_back(open_segment(std::move(file), options.layout));
  check_kind(segment, options.layout);
  check_vocabulary(segment, options.vocab);
  segment.first = total_tokens_;
  total_tokens_ += segment.count;
}

void TokenData::check_kind(const Segment& segment, TokenLayout layout) {
  const InputFile& file = segment.file;
  if (segment.offset_bytes > 0) return;  // it has a header that says so
  const std::vector<std::byte> sample = sample_of(file);
  const std::string packed = why_packed(sample);
  require<DataError>(packed.empty(), "{}: the file {}", file.path(), packed);
  std::string doubt;
  if (layout == TokenLayout::kBytes) doubt = why_no_text(sample);
  if (segment.token_bytes == 2 && looks_like_u32(sample)) {
    doubt = "every second u16 token is 0 or nearly so: it seems to hold u32 tokens, for which data.layout is u32";
  }
  if (doubt.empty()) return;
  require<DataError>(layout != TokenLayout::kAuto, "{}: {}. Set it, or data.layout: u16 if they are u16", file.path(),
                     doubt);
  if (doubtful_files_++ == 0) first_doubt_ = fmt::format("{}: {}", file.path(), doubt);
}

std::string TokenData::doubt() const {
  if (doubtful_files_ < 2) return first_doubt_;
  return fmt::format("{}; {} of the {} files are like that", first_doubt_, doubtful_files_, files());
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
    const std::vector<std::byte> bytes = read_tokens(*segment, from, take);
    with_token_type(segment->token_bytes, [&]<typename T>() {
      for (int64_t i = 0; i < take; ++i) {
        const T token = load<T>(bytes.data(), i);
        if (static_cast<int64_t>(token) >= vocab_) fail_outside(*segment, from + i, token, vocab_);
        out[static_cast<size_t>(done + i)] = static_cast<int32_t>(token);
      }
    });
    done += take;
  }
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
