// tiktoken's files: a line for each token, its bytes in base64 and its rank.
#pragma once

#include <memory>
#include <string>

#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

// The name of the file determines the pattern and special tokens: cl100k*, o200k*, r50k*, p50k*, gpt2*, qwen*.
// DataError naming file and line for another name, or if it cannot be read.
std::unique_ptr<Tokenizer> open_tiktoken(const std::string& path);

}  // namespace mantissa
