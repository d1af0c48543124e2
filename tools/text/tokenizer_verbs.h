// `mantissa tokenizer train | encode | decode | show`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/text/tokenizer/bpe_trainer.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

struct TokenizerTrainRequest {
  std::vector<std::string> inputs;  // files, patterns and folders
  std::string output;               // a folder
  bool by_lines = false;            // each line is a text of its own, with its end
  BpeTrainerOptions options;
};

struct TokenizerEncodeRequest {
  std::string tokenizer;
  std::optional<std::string> file, text;  // one of them
  std::string output;                     // a file of int32; empty: print the ids
  EncodeOptions options;
};

struct TokenizerDecodeRequest {
  std::string tokenizer;
  std::vector<int32_t> ids;
  DecodeOptions options;
};

// Each returns the exit code.
int tokenizer_train_verb(const TokenizerTrainRequest& request);
int tokenizer_encode_verb(const TokenizerEncodeRequest& request);
int tokenizer_decode_verb(const TokenizerDecodeRequest& request);
int tokenizer_show_verb(const std::string& tokenizer);

}  // namespace mantissa
