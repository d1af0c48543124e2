// tiktoken's files: a line for each token, its bytes in base64 and its rank.
#pragma once

#include <memory>
#include <string>

#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

// The name of the file tells pattern and special tokens: cl100k*, o200k*, r50k*, p50k*, gpt2*, qwen*. DataError that
// names file and line otherwise, or if it cannot be read.
std::unique_ptr<Tokenizer> open_tiktoken(const std::string& path);

}  // namespace mantissa
