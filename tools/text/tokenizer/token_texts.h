// The text of each token, and how texts are joined.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

class TokenTexts {
 public:
  // How the first token of a text differs from the others.
  struct Start {
    int strips_spaces = 0;      // so many spaces at the start of the text fall away
    bool drops_spaces = false;  // all spaces of the first token fall away
  };
  // The place in a text that is being decoded.
  struct Place {
    bool is_first = true;
    int spaces_left = 0;  // that fall away
  };

  void set_start(const Start& start) { start_ = start; }
  void set(int32_t id, std::string text, bool is_special);
  // The largest id + 1.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::string_view text(int32_t id) const { return at(id).text; }
  bool is_special(int32_t id) const { return at(id).is_special; }

  Place begin() const { return {.is_first = true, .spaces_left = start_.strips_spaces}; }
  // DataError if the id is none of the vocabulary. An id within it that no token has adds nothing.
  void append(int32_t id, Place& place, std::string& out) const;

 private:
  struct Token {
    std::string text;
    bool is_special = false;
  };
  const Token& at(int32_t id) const;

  std::vector<Token> tokens_;
  Start start_;
};

}  // namespace mantissa
