// Chat templates: the text of a conversation, as a model that was tuned to chat reads it. docs/generation.md says which
// templates there are, and how they are recognised.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json_node.h"

namespace mantissa {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// An array of objects with strings `role` and `content`; other keys count for nothing. DataError naming file and key
// for another role, content in parts, a call of a tool, or an empty list.
std::vector<ChatMessage> chat_messages(const JsonNode& list);

// The author of a part of a conversation's text. The line break after an assistant's turn is context.
enum class ChatPart : uint8_t { kContext, kAssistant };

struct ChatPiece {
  std::string text;
  ChatPart part = ChatPart::kContext;
  bool operator==(const ChatPiece&) const = default;
};

// Whether the text ends where the model has to answer.
enum class AnswerHeader : uint8_t { kLeaveOut, kAppend };

// How the turns of a conversation are written.
enum class ChatFormat : uint8_t { kChatMl, kLlama3 };

struct ChatTemplate {
  ChatFormat format = ChatFormat::kChatMl;
  std::string begin{};           // in front of the text
  std::string default_system{};  // the system message if a conversation does not start with one; may be empty

  // The token that ends each turn, including an answer.
  std::string_view end_of_turn() const;

  // The template in Jinja, as find_chat_template() and transformers read it.
  std::string jinja() const;

  // The pieces in order; neighbours differ in their part. An assistant's piece is its content and the end of its turn,
  // without the header before and the line break after it. A tokenizer reads piece by piece, with special tokens but
  // without adding any: a model that answers reads its context in the same way. The whole text equals Hugging Face's
  // apply_chat_template() for the template. DataError for another role or no message.
  std::vector<ChatPiece> render(std::span<const ChatMessage> messages,
                                AnswerHeader answer = AnswerHeader::kLeaveOut) const;
};

// The templates that have a name: "chatml" (no system message of its own), "qwen" (ChatML with Qwen2.5's) and "llama3".
std::vector<std::string> chat_template_names();
// ConfigError naming all for another.
ChatTemplate chat_template(std::string_view name);

// The template of a Hugging Face folder, or of a run that keeps such files: chat_template.jinja, else the key
// `chat_template` of tokenizer_config.json. DataError if the folder has no template or an unknown one; it describes the
// template and suggests `option`.
ChatTemplate find_chat_template(const std::string& folder, std::string_view option);

}  // namespace mantissa
