// Writes token files as llm.c has them, into a folder that appears when all of them are complete.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>

namespace mantissa {

class TokenShards {
 public:
  struct Options {
    std::string folder;
    int64_t vocab = 0;         // up to 65,536 ids are written as u16, more as u32
    int64_t shard_tokens = 0;  // in each file but the last; a document may continue in the next file
  };
  // ConfigError if the folder exists and is not empty. DataError if it cannot be written, here and later.
  explicit TokenShards(Options options);
  // Removes what was written, unless finish() came first.
  ~TokenShards();
  TokenShards(const TokenShards&) = delete;
  TokenShards& operator=(const TokenShards&) = delete;

  void add(std::span<const int32_t> ids);
  void finish();
  int64_t files() const { return files_; }

 private:
  void close_file();

  const Options options_;
  const std::string partial_;  // the folder until it is complete
  bool is_finished_ = false;
  std::ofstream file_;
  int64_t files_ = 0, in_file_ = 0;
};

}  // namespace mantissa
