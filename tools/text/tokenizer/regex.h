// Regular expressions of tokenizers, by PCRE2's compiler for them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;  // PCRE2's pcre2_code

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
    search(text, std::ref(f));  // a reference needs no memory
  }

 private:
  void search(std::string_view text, const std::function<void(size_t begin, size_t end)>& f) const;

  std::shared_ptr<pcre2_real_code_8> code_;
  std::string where_;
};

}  // namespace mantissa
