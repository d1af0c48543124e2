#include "core/io/token_data.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <system_error>

#include "core/base/check.h"
#include "core/io/file_glob.h"
#include "core/io/token_layout.h"

namespace mantissa {
namespace {

MappedFile map_data(const std::string& path) {
  try {
    return MappedFile(path);
  } catch (const std::system_error& error) {
    throw DataError(fmt::format("{}: cannot read the data file: {}", path, error.code().message()));
  }
}

}  // namespace

TokenData::TokenData(const TokenDataOptions& options) {
  MANTISSA_CHECK(options.vocab > 0, "[token_data] expected vocab > 0, got {}", options.vocab);
  if (options.files.empty()) throw DataError("no data files are named; set data.train to files or patterns");
  std::map<std::string, bool> sources;  // path to whether only patterns named it; sorted, each once
  for (const std::string& pattern : options.files) {
    const std::vector<std::string> matches = expand_glob(pattern);
    if (matches.empty()) throw DataError(fmt::format("no data file matches the pattern '{}'", pattern));
    for (const std::string& path : matches) {
      const bool from_pattern = has_wildcard(pattern);
      sources.try_emplace(path, from_pattern).first->second &= from_pattern;
    }
  }
  for (const auto& [path, from_pattern] : sources) add_file(path, options, from_pattern);
  if (segments_.empty()) {
    throw DataError(
        fmt::format("all {} data files are empty, the first is {}", sources.size(), sources.begin()->first));
  }
}

void TokenData::add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern) {
  MappedFile file = map_data(path);
  // A folder of sources may hold an empty one; a token file without tokens is a mistake.
  if (file.bytes().empty() && options.layout == TokenLayout::kBytes && from_pattern) {
    skipped_empty_files_.push_back(path);
    return;
  }
  const TokenFileShape shape = token_file_shape(file, options.layout);
  check_vocabulary(file, shape, options.vocab);
  segments_.push_back({std::move(file), shape, total_tokens_});
  total_tokens_ += shape.count;
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
    const int64_t take = std::min(count - done, segment->shape.count - from);
    for (int64_t i = 0; i < take; ++i) {
      out[static_cast<size_t>(done + i)] = static_cast<int32_t>(token_at(segment->file, segment->shape, from + i));
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
