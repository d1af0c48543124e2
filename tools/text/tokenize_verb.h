// `mantissa tokenize`: text, JSONL and Parquet files to token files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mantissa {

struct TokenizeRequest {
  std::vector<std::string> inputs;  // files, patterns and folders
  std::string tokenizer;
  std::string output;          // a folder
  std::string field = "text";  // of a line of JSON; the column of Parquet
  std::string chat;  // lines are conversations: a template's name, or "auto" for the tokenizer's folder; empty: texts
  std::string end_of_text;  // the token after each document; empty: the tokenizer's
  int64_t shard_tokens = 100'000'000;
  int64_t most_bad_lines = 0;  // that are skipped
  bool special_tokens_as_text = false;
};

// Returns the exit code.
int tokenize_verb(const TokenizeRequest& request);

}  // namespace mantissa
