// Regular expressions of tokenizers, by PCRE2's compiler for them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace mantissa {

// The engine for which a pattern was written.
enum class RegexDialect : uint8_t {
  kOniguruma,  // tokenizer.json
  kRust,       // tiktoken
};

class Regex {
 public:
  // DataError naming `where` (file and key) if the pattern is none, or means something else in PCRE2.
  Regex(const std::string& pattern, RegexDialect dialect, const std::string& where);

  // Calls f(begin, end) for each match in valid UTF-8, in order. Thread safe.
  template <typename F>
  void for_each_match(std::string_view text, const F& f) const {
    Search search(*this, text);
    while (search.next()) f(search.begin(), search.end());
  }

 private:
  struct Compiled;
  class Search {
   public:
    Search(const Regex& regex, std::string_view text);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    bool next();
    size_t begin() const { return begin_; }
    size_t end() const { return end_; }

   private:
    const Compiled& compiled_;
    std::string_view text_;
    size_t begin_ = 0, end_ = 0, from_ = 0;
    void* match_ = nullptr;
  };

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace mantissa
