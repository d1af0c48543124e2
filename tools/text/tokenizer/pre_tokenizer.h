// Pre-tokenizers: they cut text into words, within which tokens are merged.
#pragma once

#include <memory>
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
const std::vector<TextPattern>& known_patterns();
// nullptr if there is none of the name.
const TextPattern* find_pattern(std::string_view name);

struct Piece {
  std::string_view text;
  bool is_start = false;  // it begins where the whole text does
};

class PieceSink {
 public:
  virtual void take(const Piece& piece) = 0;

 protected:
  ~PieceSink() = default;
};

// Thread safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Hands the parts of a piece that is not empty to `sink`.
  virtual void cut(const Piece& piece, PieceSink& sink) const = 0;
  // How a cut of the text before a space changes words: "a b" handed in as "a" and " b". kIsBorder: words end there
  // anyway. kAddsBorder: the cut adds a border and changes no other. kUnknown: words beside it may change.
  enum class CutBeforeSpace : uint8_t { kIsBorder, kAddsBorder, kUnknown };
  virtual CutBeforeSpace cut_before_space() const = 0;
};

// Where the delimiters go that are found.
enum class DelimiterUse : uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class SplitPreTokenizer : public PreTokenizer {
 public:
  // `inverted`: the matches are the words, the rest are delimiters. `is_known`: the pattern is one of known_patterns().
  struct Options {
    DelimiterUse use = DelimiterUse::kIsolated;
    bool inverted = false, is_known = false;
  };
  SplitPreTokenizer(Regex pattern, const Options& options) : pattern_(std::move(pattern)), options_(options) {}
  void cut(const Piece& piece, PieceSink& sink) const override;
  CutBeforeSpace cut_before_space() const override;

 private:
  Regex pattern_;
  Options options_;
};

class DigitsPreTokenizer : public PreTokenizer {
 public:
  explicit DigitsPreTokenizer(DelimiterUse use) : use_(use) {}
  void cut(const Piece& piece, PieceSink& sink) const override;
  CutBeforeSpace cut_before_space() const override { return CutBeforeSpace::kAddsBorder; }

 private:
  DelimiterUse use_;
};

// The first part of ByteLevel with add_prefix_space. The bytes themselves are the model's matter.
class PrefixSpacePreTokenizer : public PreTokenizer {
 public:
  void cut(const Piece& piece, PieceSink& sink) const override;
  CutBeforeSpace cut_before_space() const override { return CutBeforeSpace::kAddsBorder; }
};

// Writes spaces as another character, which begins words.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  enum class Prepend : uint8_t { kFirst, kNever, kAlways };
  struct Options {
    std::string replacement;
    Prepend prepend = Prepend::kAlways;
    bool splits = true;
  };
  explicit MetaspacePreTokenizer(Options options) : options_(std::move(options)) {}
  void cut(const Piece& piece, PieceSink& sink) const override;
  CutBeforeSpace cut_before_space() const override {
    return options_.splits ? CutBeforeSpace::kIsBorder : CutBeforeSpace::kUnknown;
  }

 private:
  Options options_;
};

class PreTokenizerSequence {
 public:
  void add(std::unique_ptr<PreTokenizer> part) { parts_.push_back(std::move(part)); }
  bool empty() const { return parts_.empty(); }
  void cut(const Piece& piece, PieceSink& sink) const { cut_from(0, piece, sink); }
  // True if cutting the text before a space, after a non-space, keeps its words.
  bool allows_cut_before_space() const;

 private:
  void cut_from(size_t part, const Piece& piece, PieceSink& sink) const;

  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

}  // namespace mantissa
