// Pre-tokenizers: they cut text into words, within which tokens are merged.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/tokenizer/regex.h"

namespace mantissa {

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
