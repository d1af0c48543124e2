// Token data: text bytes or token files, joined to one long sequence in the order of the files.
//
// Windows may cross from one file into the next, so many small files lose nothing at their ends. Everything is checked
// when the data is opened, so that a mistake shows at the start. Reads check again: somebody may write to the files.
#pragma once

#include <memory>

#include "core/data/token_file.h"

namespace mantissa {

// Where documents begin, for training that keeps them apart.
enum class Documents : uint8_t {
  kJoined,    // nobody asks
  kSeparate,  // as the files say, or after each end-of-text token; a text file is one document
};

struct TokenDataOptions {
  std::vector<std::string> files;  // names or patterns, see expand_glob(); sorted as a whole, each file once
  TokenLayout layout = TokenLayout::kBytes;
  int64_t vocab = 256;
  Documents documents = Documents::kJoined;
  int32_t end_of_text = -1;  // ends a document, if the file does not mark documents; -1: no token does
};

class TokenData {
 public:
  // Scans token files with all threads. DataError naming file and offset if
  // - data is missing, empty, truncated, compressed or of an unknown kind,
  // - it holds a token outside [0, vocab), or two tokenizers made the files,
  // - tokens without a header seem to be u32, and the layout is kAuto,
  // - documents are asked for and not known.
  explicit TokenData(const TokenDataOptions& options);

  int64_t tokens() const { return total_tokens_; }
  size_t files() const { return files_.size(); }
  // Empty files that a pattern matched (bytes only; worth a warning).
  const std::vector<std::string>& skipped_empty_files() const { return skipped_empty_files_; }

  // Why a file seems to hold something else than the options say, for the first such file, if any. Worth a warning.
  std::string doubt() const;

  // Reads tokens [begin, begin + out.size()); ContractError beyond. DataError naming file and offset if it was damaged.
  void read(int64_t begin, std::span<int32_t> out) const;

  // Identifies the tokens, whatever the files are called: ranks compare it, and a resumed run notices other data.
  // Computed from the files' sizes and samples of their contents, when they were opened.
  uint64_t fingerprint() const { return fingerprint_; }

  // The first token of each document, ascending; the first is 0. Empty if the options do not ask.
  const std::vector<int64_t>& documents() const { return documents_; }
  bool has_loss_mask() const { return has_loss_mask_; }              // whether some tokens do not count as targets
  void read_loss_mask(int64_t begin, std::span<uint8_t> out) const;  // 0 for each of these tokens that does not count
  // The name of the tokenizer; empty: the files do not name it.
  const std::string& tokenizer() const { return tokenizer_; }

 private:
  void add_file(const std::string& path, const TokenDataOptions& options, bool from_pattern);
  // Checks that the file's content looks like its layout.
  void check_kind(const TokenFile& file, TokenLayout layout);
  void add_documents(TokenFile& file, const TokenDataOptions& options);
  // Calls visit(file, index, out) for the parts of [begin, begin + out.size()) in each file.
  template <typename T, typename Visit>
  void for_each_part(int64_t begin, std::span<T> out, Visit visit) const;

  std::vector<TokenFile> files_;
  std::vector<int64_t> documents_;
  std::vector<std::string> skipped_empty_files_;
  std::string first_doubt_, tokenizer_;
  int64_t doubtful_files_ = 0;
  bool has_loss_mask_ = false;
  int64_t total_tokens_ = 0;
  uint64_t fingerprint_ = 0;
};

// Part of the data: [begin, end).
struct TokenRange {
  std::shared_ptr<const TokenData> data;
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  // The first token of each of its documents, and of the part of one at its start. Empty if documents are not known.
  std::vector<int64_t> documents() const;
  static TokenRange whole(std::shared_ptr<const TokenData> data);
};

struct TokenSplit {
  TokenRange train, validation;
};

// Reserves the last `validation_fraction` of the tokens for validation; 0: none. It starts with a document, if known.
TokenSplit split_tail(std::shared_ptr<const TokenData> data, double validation_fraction);

}  // namespace mantissa
