// Token data: text bytes or token files, memory-mapped, joined to one long sequence in the order of the files.
//
// Windows may cross from one file into the next: with many small files nothing is lost at their ends. Everything is
// checked when the data is opened, so that no step meets a token outside of the vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io/mapped_file.h"
#include "core/io/token_layout.h"

namespace mantissa {

struct TokenDataOptions {
  std::vector<std::string> files;  // names or patterns, see file_glob.h; sorted as a whole, each file once
  TokenLayout layout = TokenLayout::kBytes;
  int64_t vocab = 256;
};

class TokenData {
 public:
  // DataError naming file and offset for data that is missing, empty, truncated, of an unknown kind, or holds a token
  // outside of [0, vocab). Scans token files with all OpenMP threads.
  explicit TokenData(const TokenDataOptions& options);

  int64_t tokens() const { return total_tokens_; }
  size_t files() const { return segments_.size(); }
  // Files that a pattern matched and that held nothing (bytes only; worth a warning).
  const std::vector<std::string>& skipped_empty_files() const { return skipped_empty_files_; }

  // Tokens [begin, begin + out.size()); ContractError beyond the end.
  void read(int64_t begin, std::span<int32_t> out) const;

  // Of the tokens themselves, whatever the files are called: ranks compare it, and a resumed run knows other data by
  // it. Sizes of the files and samples of their contents.
  uint64_t fingerprint() const;

 private:
  struct Segment {
    MappedFile file;
    TokenFileShape shape;
    int64_t first = 0;  // index of its first token in the whole
  };

  void add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern);

  std::vector<Segment> segments_;
  std::vector<std::string> skipped_empty_files_;
  int64_t total_tokens_ = 0;
};

// Part of the data: [begin, end).
struct TokenRange {
  std::shared_ptr<const TokenData> data;
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  static TokenRange whole(std::shared_ptr<const TokenData> data);
};

struct TokenSplit {
  TokenRange train, validation;
};

// The last `validation_fraction` of the tokens is set aside for validation; 0: none is.
TokenSplit split_tail(std::shared_ptr<const TokenData> data, double validation_fraction);

}  // namespace mantissa
