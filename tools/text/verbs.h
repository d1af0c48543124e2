// Verbs for text: tokenize; tokenizer train, encode, decode, show.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

inline constexpr const char* kTokenizerHelp =
    "folder with a tokenizer.json, or a file: *.json, *.tiktoken, llm.c's *.bin";

void add_text_verbs(CLI::App& app, std::vector<Verb>& verbs);
// The first of them.
void add_tokenize(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
