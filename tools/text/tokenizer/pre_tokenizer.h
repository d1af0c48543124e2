// Normalizers of a tokenizer.json, which change the text, and then pre-tokenizers: they cut it into words, within which
// tokens are merged.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/tokenizer/regex.h"

namespace mantissa {

// `text`, or what it becomes, in `storage`. Thread safe.
using Normalizer = std::function<std::string_view(std::string_view text, std::string& storage)>;

// A Unicode normal form. Characters that utf8proc's Unicode version does not know stay as they are.
enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
Normalizer unicode_normalizer(NormalForm form);
// Puts `prefix` before text that is not empty.
Normalizer prepend_normalizer(std::string prefix);
// Writes `content` for each match.
Normalizer replace_normalizer(Regex pattern, std::string content);

// Several in a row. `text` must not lie in `storage`.
std::string_view normalized(std::span<const Normalizer> normalizers, std::string_view text, std::string& storage);

// Whether no normal form changes the character or joins it with one before it. True for common scripts only.
bool is_inert(char32_t code);

// A pattern that is known by name.
struct TextPattern {
  std::string_view name;
  std::string_view regex;
};
// No match has a space after a non-space, and no pattern looks back, so text can be cut there.
std::span<const TextPattern> known_patterns();
// nullptr if there is none of the name.
const TextPattern* find_pattern(std::string_view name);

struct Piece {
  std::string_view text;
  bool is_start = false;  // it begins where the whole text does
};
using PieceSink = std::function<void(const Piece& piece)>;

// How a cut of the text before a space changes words: "a b" handed in as "a" and " b". kIsBorder: words end there
// anyway. kAddsBorder: the cut adds a border and changes no other. kUnknown: words beside it may change.
enum class CutBeforeSpace : uint8_t { kIsBorder, kAddsBorder, kUnknown };

struct PreTokenizer {
  // Hands the parts of a piece that is not empty to `sink`. Thread safe.
  std::function<void(const Piece& piece, const PieceSink& sink)> cut;
  CutBeforeSpace cut_before_space;
};

// Where the delimiters go that are found.
enum class DelimiterUse : uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// `inverted`: the matches are the words, the rest are delimiters. `is_known`: the pattern is one of known_patterns().
struct SplitOptions {
  DelimiterUse use = DelimiterUse::kIsolated;
  bool inverted = false, is_known = true;
};
PreTokenizer split_pre_tokenizer(const Regex& pattern, const SplitOptions& options = {});

PreTokenizer digits_pre_tokenizer(DelimiterUse use);

// The first part of ByteLevel with add_prefix_space. The bytes themselves are the model's matter.
PreTokenizer prefix_space_pre_tokenizer();

// Writes spaces as another character, which begins words.
struct MetaspaceOptions {
  enum class Prepend : uint8_t { kFirst, kNever, kAlways };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool splits = true;
};
PreTokenizer metaspace_pre_tokenizer(const MetaspaceOptions& options);

// By all of them, one after the other.
void cut(std::span<const PreTokenizer> pre_tokenizers, const Piece& piece, const PieceSink& sink);
// True if cutting the text before a space, after a non-space, keeps its words.
bool allows_cut_before_space(std::span<const PreTokenizer> pre_tokenizers);

}  // namespace mantissa
