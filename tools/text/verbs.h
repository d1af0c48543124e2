// Verbs for text: tokenize; tokenizer train, encode, decode, show.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

void add_text_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
