// llm.c's tokenizer file, which has the bytes of each token but no merges: it decodes only.
#pragma once

#include <memory>
#include <string>

#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

std::unique_ptr<Tokenizer> open_llmc_tokenizer(const std::string& path);

}  // namespace mantissa
