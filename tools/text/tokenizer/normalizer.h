// Normalizers of a tokenizer.json: they change the text before it is cut into words.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/tokenizer/regex.h"

namespace mantissa {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text`, or what it becomes, in `storage`. Thread safe.
  virtual std::string_view apply(std::string_view text, std::string& storage) const = 0;
};

// A Unicode normal form. Characters that utf8proc's Unicode version does not know stay as they are.
class UnicodeNormalizer : public Normalizer {
 public:
  enum class Form : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
  explicit UnicodeNormalizer(Form form) : form_(form) {}
  std::string_view apply(std::string_view text, std::string& storage) const override;

 private:
  Form form_;
};

// Puts `prefix` before text that is not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string_view apply(std::string_view text, std::string& storage) const override;

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string_view apply(std::string_view text, std::string& storage) const override;

 private:
  Regex pattern_;
  std::string content_;
};

// Several in a row.
class NormalizerSequence {
 public:
  void add(std::unique_ptr<Normalizer> normalizer) { parts_.push_back(std::move(normalizer)); }
  // As Normalizer::apply(). `text` must not lie in `storage`.
  std::string_view apply(std::string_view text, std::string& storage) const;

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

// Whether no normal form changes the character or joins it with one before it. True for common scripts only.
bool is_inert(char32_t code);

}  // namespace mantissa
