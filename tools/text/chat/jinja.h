// The text that a chat template in Jinja makes of a conversation, for a part of the language. find_chat_template() uses
// it to recognise a template. Conditions may read roles, and whether a message is the first, the second or the last.
// Conditions on contents are not supported, so a few short conversations show the text of all others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/chat/chat_template.h"

namespace mantissa {

struct JinjaToken {
  enum class Kind : uint8_t { kName, kLiteral, kSign };
  Kind kind = Kind::kSign;
  std::string text{};  // of a literal: what it stands for
};

struct JinjaTag {
  enum class Kind : uint8_t { kText, kOutput, kStatement };
  Kind kind = Kind::kText;
  std::string source{};  // as the template has it
  std::vector<JinjaToken> tokens{};
};

// The texts, outputs and statements of a template; comments are left out. White space falls as in transformers, which
// sets trim_blocks and lstrip_blocks. DataError for a tag without end, with a sign that Jinja lacks, or "raw".
std::vector<JinjaTag> jinja_tags(std::string_view source);

// DataError "it has ..." for a part of a template.
[[noreturn]] void refuse_jinja(std::string_view part);

// At most 60 bytes of it, on one line, for messages.
std::string excerpt(std::string_view text);

// Special tokens by their variable in templates, such as "bos_token"; nothing for a token that the tokenizer lacks.
using SpecialTokens = std::map<std::string, std::optional<std::string>>;

class JinjaTemplate {
 public:
  // DataError by refuse_jinja(), here and from text(), for a part that this class does not know.
  JinjaTemplate(std::string_view source, SpecialTokens special_tokens);

  // The text of apply_chat_template() without tools and documents. Each message has a role and a content only.
  std::string text(std::span<const ChatMessage> messages, AnswerHeader answer) const;

 private:
  std::vector<JinjaTag> tags_;
  SpecialTokens special_tokens_;
};

}  // namespace mantissa
