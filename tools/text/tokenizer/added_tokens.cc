#include "tools/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) begins_[static_cast<unsigned char>(token.content.front())] = true;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view rest) const {
  // Among the tokens that share the first `length` bytes of the text, the shortest comes first.
  auto begin = tokens_.begin(), end = tokens_.end();
  const AddedToken* longest = nullptr;
  for (size_t length = 0; length < rest.size() && begin != end; ++length) {
    const auto byte_of = [length](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[length]);
    };
    const auto wanted = static_cast<unsigned char>(rest[length]);
    begin = std::partition_point(begin, end, [&](const AddedToken& token) { return byte_of(token) < wanted; });
    end = std::partition_point(begin, end, [&](const AddedToken& token) { return byte_of(token) == wanted; });
    for (; begin != end && begin->content.size() == length + 1; ++begin) longest = &*begin;
  }
  return longest;
}

std::vector<TokenOrText> AddedTokenMatcher::cut(std::string_view whole, bool skips_special) const {
  std::vector<TokenOrText> parts;
  size_t done = 0;  // of `whole`
  for (size_t from = 0; !tokens_.empty() && from < whole.size();) {
    const bool may_begin = begins_[static_cast<unsigned char>(whole[from])];
    const AddedToken* const token = may_begin ? longest_at(whole.substr(from)) : nullptr;
    if (token == nullptr) {
      ++from;
      continue;
    }
    size_t begin = from, end = from + token->content.size();
    from = end;
    if (skips_special && token->special) continue;
    if (token->single_word && ((begin > 0 && is_word(last_char(whole.substr(0, begin)).code)) ||
                               (end < whole.size() && is_word(first_char(whole.substr(end)).code)))) {
      continue;
    }
    while (token->lstrip && begin > 0) {
      const TextChar before = last_char(whole.substr(0, begin));
      if (!is_space(before.code)) break;
      begin -= before.bytes;
    }
    while (token->rstrip && end < whole.size()) {
      const TextChar next = first_char(whole.substr(end));
      if (!is_space(next.code)) break;
      end += next.bytes;
    }
    // White space that it takes may belong to an earlier token.
    if (done < begin) parts.push_back({.text = whole.substr(done, begin - done)});
    parts.push_back({.token = token->id});
    done = end;
  }
  if (done < whole.size()) parts.push_back({.text = whole.substr(done)});
  return parts;
}

}  // namespace mantissa
