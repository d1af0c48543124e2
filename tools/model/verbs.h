// Verbs for models: generate, evaluate, score, import, export.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

inline constexpr const char* kModelHelp =
    "run folder, checkpoint folder, Hugging Face folder, or GPT-2 of llm.c (.bin)";

inline constexpr const char* kNoSpecialTokensHelp = "without the tokens that the tokenizer puts around a text";

// Text from a run, or from a model of another program: continues texts up to a token that ends them, or a stop string.
// Prints the prompt, but for a conversation, and what follows it, as it is generated; for a file of prompts a line of
// JSON each.
void add_generate(CLI::App& app, std::vector<Verb>& verbs);

// How well a model predicts text, and which choices it prefers: a line for each text and task. This and `score` also
// run under mpirun, with the same results for every number of ranks.
void add_evaluate(CLI::App& app, std::vector<Verb>& verbs);
// Prints a line for each token but the first: position, token, log-probability in nats, text. The numbers have the
// digits that give the same fp32 bits again.
void add_score(CLI::App& app, std::vector<Verb>& verbs);

// The model of another program as a run folder: settings, a checkpoint of step 0 with the weights bit for bit, and the
// files of a tokenizer. The folder is there whole or not at all.
void add_import(CLI::App& app, std::vector<Verb>& verbs);
// The weights of a run in the files of other programs, likewise.
void add_export(CLI::App& app, std::vector<Verb>& verbs);

inline void add_model_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  for (const auto add : {add_generate, add_evaluate, add_score, add_import, add_export}) add(app, verbs);
}

}  // namespace mantissa
