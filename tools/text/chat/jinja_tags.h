// The tags of a chat template in Jinja, with their tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace mantissa
