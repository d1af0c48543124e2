#include "core/data/token_data.h"

#include <xxhash.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "core/base/check.h"
#include "core/data/data_kind.h"

namespace mantissa {
namespace {

// As many files stay open as fit well below the usual limit of 1024, for training and validation data.
constexpr size_t kKeptOpen = 256;

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
      sources.try_emplace(token_file_of(path, options.layout), from_pattern).first->second &= from_pattern;
    }
  }
  for (const auto& [path, from_pattern] : sources) add_file(path, options, from_pattern);
  require<DataError>(!files_.empty(), "all {} data files are empty, the first is {}", sources.size(),
                     sources.begin()->first);
  fingerprint_ = static_cast<uint64_t>(total_tokens_);
  for (const TokenFile& file : files_) fingerprint_ = hash_of(file.file, fingerprint_);
  if (!documents_.empty()) {
    fingerprint_ = XXH3_64bits_withSeed(documents_.data(), documents_.size() * sizeof(int64_t), fingerprint_);
  }
}

void TokenData::add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern) {
  // A folder of sources may hold an empty file; a token file without tokens is a mistake.
  std::error_code error;  // then opening it reports the reason
  if (options.layout == TokenLayout::kBytes && from_pattern && std::filesystem::file_size(path, error) == 0) {
    skipped_empty_files_.push_back(path);
    return;
  }
  const auto descriptor = files_.size() < kKeptOpen ? InputFile::Descriptor::kKept : InputFile::Descriptor::kPerRead;
  TokenFile& file = files_.emplace_back(open_token_file(path, options.layout, descriptor, options.vocab));
  check_kind(file, options.layout);
  file.check_vocabulary();
  require<DataError>(tokenizer_.empty() || file.tokenizer.empty() || file.tokenizer == tokenizer_,
                     "{}: its tokens are of the tokenizer '{}', those of the files before of '{}'", path,
                     file.tokenizer, tokenizer_);
  if (tokenizer_.empty()) tokenizer_ = file.tokenizer;
  has_loss_mask_ |= file.mask_offset.has_value();
  file.first = total_tokens_;
  if (options.documents == Documents::kSeparate) add_documents(file, options);
  file.documents = {};
  total_tokens_ += file.count;
}

void TokenData::add_documents(TokenFile& file, const TokenDataOptions& options) {
  if (file.documents.empty()) {
    require<DataError>(options.end_of_text >= 0 || options.layout == TokenLayout::kBytes,
                       "{}: the file does not tell where documents begin: set data.end_of_text to the token that ends "
                       "each, or data.packing to none",
                       file.file.path());
    file.documents = options.end_of_text >= 0 ? file.documents_by(options.end_of_text) : std::vector<int64_t>{0};
  }
  for (const int64_t start : file.documents) documents_.push_back(file.first + start);
}

void TokenData::check_kind(const TokenFile& tokens, TokenLayout layout) {
  const InputFile& file = tokens.file;
  if (tokens.is_described) return;
  const std::vector<std::byte> sample = sample_of(file);
  const std::string packed = why_packed(sample);
  require<DataError>(packed.empty(), "{}: the file {}", file.path(), packed);
  std::string doubt;
  if (layout == TokenLayout::kBytes) {
    doubt = looks_like_json(sample)
                ? "it is JSON, whose braces, keys and escapes are learned, too: `mantissa tokenize` "
                  "makes token files of the texts in it"
                : why_no_text(sample);
  } else if (const size_t wide = wide_token_bytes(sample); wide > static_cast<size_t>(tokens.token_bytes)) {
    doubt = wide == 4 ? "every second u16 token is 0 or nearly so: it seems to hold u32 tokens; data.layout: u32 reads "
                        "them"
                      : "most of each 8 bytes is 0 or nearly so: it seems to hold int64 tokens, which no layout reads; "
                        "write u32, as by NumPy's astype('uint32').tofile()";
  }
  if (doubt.empty()) return;
  require<DataError>(layout != TokenLayout::kAuto, "{}: {}. If they are u16, set data.layout: u16", file.path(), doubt);
  if (doubtful_files_++ == 0) first_doubt_ = fmt::format("{}: {}", file.path(), doubt);
}

std::string TokenData::doubt() const {
  if (doubtful_files_ < 2) return first_doubt_;
  return fmt::format("{}; {} of the {} files are like that", first_doubt_, doubtful_files_, files());
}

template <typename T, typename Visit>
void TokenData::for_each_part(int64_t begin, std::span<T> out, Visit visit) const {
  const auto count = static_cast<int64_t>(out.size());
  MANTISSA_CHECK(begin >= 0 && begin + count <= total_tokens_, "[token_data] tokens [{}, {}) are outside of {} tokens",
                 begin, begin + count, total_tokens_);
  auto file = std::upper_bound(files_.begin(), files_.end(), begin,
                               [](int64_t index, const TokenFile& f) { return index < f.first; });
  if (count > 0) --file;
  for (int64_t done = 0; done < count; ++file) {
    const int64_t from = begin + done - file->first;
    const int64_t take = std::min(count - done, file->count - from);
    std::invoke(visit, *file, from, out.subspan(static_cast<size_t>(done), static_cast<size_t>(take)));
    done += take;
  }
}

void TokenData::read(int64_t begin, std::span<int32_t> out) const { for_each_part(begin, out, &TokenFile::read); }

void TokenData::read_loss_mask(int64_t begin, std::span<uint8_t> out) const {
  for_each_part(begin, out, &TokenFile::read_loss_mask);
}

std::vector<int64_t> TokenRange::documents() const {
  const std::vector<int64_t>& all = data->documents();
  if (all.empty() || begin == end) return {};
  std::vector<int64_t> mine = {begin};
  mine.insert(mine.end(), std::ranges::upper_bound(all, begin), std::ranges::lower_bound(all, end));
  return mine;
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
  int64_t border = tokens - validation;
  if (validation > 0) {
    const auto next = std::ranges::lower_bound(data->documents(), border);
    if (next != data->documents().end()) border = *next;
  }
  return {{data, 0, border}, {data, border, tokens}};
}

}  // namespace mantissa
