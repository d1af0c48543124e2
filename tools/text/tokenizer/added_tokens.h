// Tokens that are found in the text as a whole, before it is cut into words: special and added ones.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;              // is looked for in normalized text
  bool single_word = false;             // only where no letter, digit or mark touches it
  bool lstrip = false, rstrip = false;  // takes the white space on its left, on its right
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Contents must not be empty.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts valid UTF-8 at the tokens: the leftmost first, and the longest of several at the same place. Calls token(id),
  // and text(part) for non-empty text between tokens. `skips_special`: special tokens are text.
  template <typename Text, typename Token>
  void cut(std::string_view whole, bool skips_special, const Text& text, const Token& token) const {
    size_t done = 0;  // of `whole`
    for (size_t from = 0; const std::optional<Match> match = next_match(whole, skips_special, from);) {
      if (done < match->begin) text(whole.substr(done, match->begin - done));
      token(match->id);
      done = match->end;
    }
    if (done < whole.size()) text(whole.substr(done));
  }

 private:
  struct Match {
    int32_t id = 0;
    size_t begin = 0, end = 0;
  };
  // Searches from `from` on, and moves it to the end of the token found. White space that a match takes may belong to
  // an earlier match.
  std::optional<Match> next_match(std::string_view whole, bool skips_special, size_t& from) const;
  const AddedToken* longest_at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // whether a token begins with the byte
};

}  // namespace mantissa
