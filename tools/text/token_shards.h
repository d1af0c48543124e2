// Writes token files into a folder that appears when all of them are complete: files of llm.c, or token shards. Shards
// (core/data/token_shard.h) know where documents begin, and which tokens count as targets.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <string>

#include "core/data/token_shard.h"
#include "core/io/files.h"

namespace mantissa {

class TokenShards {
 public:
  enum class Form : uint8_t { kLlmc, kOwn };
  struct Options {
    std::string folder;
    Form form = Form::kLlmc;
    std::string tokenizer{};   // named in files of our own
    int64_t vocab = 0;         // up to 65,536 ids are written as u16, more as u32
    int64_t shard_tokens = 0;  // in each file but the last. llm.c: a document may continue in the next file; our own: a
                               // file ends after the document that reaches this number
  };
  // ConfigError as PendingOutput(). The other functions throw DataError if they cannot write.
  explicit TokenShards(Options options);

  // A document. `loss_mask`: of files of our own, see TokenShardWriter.
  void add(std::span<const int32_t> ids, std::span<const uint8_t> loss_mask = {});
  void finish();
  int64_t files() const { return files_; }

 private:
  void close_file();
  void write_shard();

  const Options options_;
  PendingOutput output_;
  std::ofstream file_;
  std::optional<TokenShardWriter> shard_;  // that is being filled
  int64_t files_ = 0, in_file_ = 0;
};

}  // namespace mantissa
