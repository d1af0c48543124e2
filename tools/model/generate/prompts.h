// The texts that `mantissa generate` continues: given on the command line or by a file, plain or as conversations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/model/runtime/loaded_model.h"

namespace mantissa {

// The command line. Exactly one of the first four is given.
struct PromptChoice {
  std::optional<std::string> prompt{};    // text; for a model of token files without a tokenizer, numbers
  std::optional<std::string> chat{};      // what the user says
  std::optional<std::string> messages{};  // a JSON file with a list of messages
  std::optional<std::string> prompts{};   // a file with a prompt or conversation a line
  std::optional<std::string> system{};    // the system message of conversations without their own
  std::string chat_template{};            // a name, in place of the model's own template
};

struct Prompt {
  std::string text;  // as given; for conversations as the model reads it
  std::vector<int32_t> tokens;
  bool is_chat = false;
};

struct PromptList {
  std::vector<Prompt> prompts;
  std::string end_of_turn{};  // where there are conversations
};

// `model`: where the chat template is looked for. In a file *.jsonl, a line is {"prompt": TEXT} or {"messages": [...]};
// in others it is a prompt. ConfigError for options that do not fit; DataError naming file and line.
PromptList read_prompts(const PromptChoice& choice, const std::string& model, const TextCodec& codec);

}  // namespace mantissa
