#include "tools/text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

utf8proc_option_t options_of(NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (is_compatible ? UTF8PROC_COMPAT : 0));
}

void append_normalized(std::string_view text, utf8proc_option_t options, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t count = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  if (count < 0) throw std::bad_alloc();  // valid UTF-8 has no other reason
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(count));
  std::free(mapped);
}

std::string_view in_normal_form(NormalForm form, std::string_view text, std::string& storage) {
  // Most characters are inert. The others are normalized in runs, each together with the character before it: the run's
  // first character may combine with it.
  const bool keeps_latin = form == NormalForm::kNfc;
  const auto stays = [keeps_latin](char32_t code) { return is_inert(code) || (keeps_latin && code < 0x300); };
  const utf8proc_option_t options = options_of(form);
  size_t copied = 0, before = 0, at = 0;  // `before`: the start of the character before `at`
  bool is_changed = false;
  while (at < text.size()) {
    const TextChar next = first_char(text.substr(at));
    if (stays(next.code)) {
      before = at;
      at += next.bytes;
      continue;
    }
    size_t end = at + next.bytes;
    for (size_t bytes = 0; end < text.size(); end += bytes) {
      const TextChar following = first_char(text.substr(end));
      if (stays(following.code)) break;
      bytes = following.bytes;
    }
    if (!is_changed) storage.clear();
    is_changed = true;
    storage.append(text.substr(copied, before - copied));
    append_normalized(text.substr(before, end - before), options, storage);
    copied = before = at = end;
  }
  if (!is_changed) return text;
  storage.append(text.substr(copied));
  return storage;
}

}  // namespace

// NFC leaves U+0000 to U+02FF as they are; the compatible and the decomposed forms leave ASCII.
bool is_inert(char32_t code) {
  return code < 0x80 || (code >= 0x0410 && code <= 0x0418) || (code >= 0x041A && code <= 0x0438) ||
         (code >= 0x043A && code <= 0x044F) ||                                          // Cyrillic without й
         (code >= 0x05D0 && code <= 0x05EA) ||                                          // Hebrew
         (code >= 0x0E01 && code <= 0x0E30) ||                                          // Thai consonants
         (code >= 0x2012 && code <= 0x2016) || (code >= 0x2018 && code <= 0x201E) ||    // quotation marks
         (code >= 0x3001 && code <= 0x3029) ||                                          // CJK punctuation
         (code >= 0x3400 && code <= 0x4DBF) || (code >= 0x4E00 && code <= 0x9FFF) ||    // CJK
         (code >= 0x1F300 && code <= 0x1F6FF) || (code >= 0x1F900 && code <= 0x1F9FF);  // emoji
}

Normalizer unicode_normalizer(NormalForm form) {
  return [form](std::string_view text, std::string& storage) { return in_normal_form(form, text, storage); };
}

Normalizer prepend_normalizer(std::string prefix) {
  return [prefix = std::move(prefix)](std::string_view text, std::string& storage) -> std::string_view {
    if (text.empty()) return text;
    storage.assign(prefix);
    storage.append(text);
    return storage;
  };
}

Normalizer replace_normalizer(Regex pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](std::string_view text,
                                                                      std::string& storage) -> std::string_view {
    size_t copied = 0;
    bool is_changed = false;
    pattern.for_each_match(text, [&](size_t begin, size_t end) {
      if (!is_changed) storage.clear();
      is_changed = true;
      storage.append(text.substr(copied, begin - copied));
      storage.append(content);
      copied = end;
    });
    if (!is_changed) return text;
    storage.append(text.substr(copied));
    return storage;
  };
}

std::string_view normalized(std::span<const Normalizer> normalizers, std::string_view text, std::string& storage) {
  std::string other;
  for (const Normalizer& normalizer : normalizers) {
    const std::string_view result = normalizer(text, other);
    if (result.data() != text.data() || result.size() != text.size()) {
      storage.swap(other);
      text = storage;
    }
  }
  return text;
}

}  // namespace mantissa
