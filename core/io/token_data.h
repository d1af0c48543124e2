// Token data: text bytes or token files, joined to one long sequence in the order of the files.
//
// Windows may cross from one file into the next, so many small files lose nothing at their ends. Everything is checked
// when the data is opened, so that a mistake shows at the start. Reads check again: somebody may write to the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io/files.h"

namespace mantissa {

// How a file holds its tokens. Sources: llm.c's dev/data/data_common.py and llmc/dataloader.h; nanoGPT's
// data/openwebtext/prepare.py.
enum class TokenLayout : uint8_t {
  kBytes,  // every byte is a token (vocabulary 256)
  kAuto,   // a token file: llm.c's if it starts with llm.c's magic, else headerless u16
  kLlmc,   // llm.c: int32[256] header (magic 20240520, version 1: u16; magic 20240801, version 7: u32), then the tokens
  kRawU16,  // nanoGPT: u16 from the first byte on
  kRawU32,
};

struct TokenDataOptions {
  std::vector<std::string> files;  // names or patterns, see expand_glob(); sorted as a whole, each file once
  TokenLayout layout = TokenLayout::kBytes;
  int64_t vocab = 256;
};

class TokenData {
 public:
  // DataError naming file and offset if data is missing, empty, truncated, compressed, of an unknown kind, or holds a
  // token outside [0, vocab); with kAuto also if tokens without a header are rather u32. Scans token files with all
  // threads.
  explicit TokenData(const TokenDataOptions& options);

  int64_t tokens() const { return total_tokens_; }
  size_t files() const { return segments_.size(); }
  // Empty files that a pattern matched (bytes only; worth a warning).
  const std::vector<std::string>& skipped_empty_files() const { return skipped_empty_files_; }

  // Why a file seems to hold something else than the options say, for the first such file; empty: none does. Worth a
  // warning.
  std::string doubt() const;

  // Reads tokens [begin, begin + out.size()); ContractError beyond the end. DataError naming file and offset if a file
  // has become shorter, or now holds a token outside [0, vocab).
  void read(int64_t begin, std::span<int32_t> out) const;

  // Identifies the tokens, whatever the files are called: ranks compare it, and a resumed run notices other data.
  // Computed from the files' sizes and samples of their contents, when they were opened.
  uint64_t fingerprint() const { return fingerprint_; }

  struct Segment {
    InputFile file;
    uint64_t offset_bytes = 0;  // of its first token
    int token_bytes = 1;
    int64_t count = 0;
    int64_t first = 0;  // index of its first token in the whole
  };

 private:
  void add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern);
  // Compares what the file seems to hold with what it is read as.
  void check_kind(const Segment& segment, TokenLayout layout);

  std::vector<Segment> segments_;
  std::vector<std::string> skipped_empty_files_;
  std::string first_doubt_;
  int64_t doubtful_files_ = 0;
  const int64_t vocab_;
  int64_t total_tokens_ = 0;
  uint64_t fingerprint_ = 0;
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

// Reserves the last `validation_fraction` of the tokens for validation; 0: none.
TokenSplit split_tail(std::shared_ptr<const TokenData> data, double validation_fraction);

}  // namespace mantissa
