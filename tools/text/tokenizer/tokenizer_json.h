// Hugging Face's tokenizer.json, for the models of the kind BPE.
#pragma once

#include <memory>
#include <string>

#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

// DataError naming file and key if it cannot be read or needs something unsupported. A tokenizer_config.json beside it
// names the tokens that begin and end a text.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path);

}  // namespace mantissa
