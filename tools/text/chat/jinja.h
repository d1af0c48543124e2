// The text that a chat template in Jinja makes of a conversation, for a part of the language. find_chat_template() uses
// it to recognise a template. Conditions may read roles, and whether a message is the first, the second or the last.
// Conditions on contents are not supported, so a few short conversations show the text of all others.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/chat/chat_template.h"
#include "tools/text/chat/jinja_tags.h"

namespace mantissa {

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
