// UTF-8, normal forms, patterns and added tokens by themselves.
#include <gtest/gtest.h>

#include <utf8proc.h>

#include "core/base/error.h"
#include "tools/text/tokenizer/bpe.h"
#include "tools/text/tokenizer/pre_tokenizer.h"
#include "tools/text/tokenizer/regex.h"
#include "tools/text/tokenizer/tokenizer.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

std::string repaired(std::string_view text) {
  std::string storage;
  return std::string(as_utf8(text, storage));
}

// As bytes.decode(errors="replace") of Python has it.
TEST(Utf8, InvalidPartsAreReplaced) {
  const std::string r = "\uFFFD";
  const std::string valid = "a\u00E9\u20AC\U0001F642 and more than eight bytes";
  std::string unused;
  EXPECT_EQ(as_utf8(valid, unused).data(), valid.data());  // not copied
  EXPECT_EQ(repaired("\xFF"), r);
  EXPECT_EQ(repaired("a\x80\x80z"), "a" + r + r + "z");
  EXPECT_EQ(repaired("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(repaired("\xE0\x80\xAF"), r + r + r);          // overlong
  EXPECT_EQ(repaired("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(repaired("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(repaired("\xE2\x82"), r);                      // an incomplete character
  EXPECT_EQ(repaired("\xF0\x9F\x99 \xF0\x9F"
                     "12345678"),
            r + " " + r + "12345678");
}

TEST(Utf8, ATailThatCanBeCompletedIsHeldBack) {
  EXPECT_EQ(incomplete_tail(""), 0u);
  EXPECT_EQ(incomplete_tail("abc"), 0u);
  EXPECT_EQ(incomplete_tail("a\xC3"), 1u);
  EXPECT_EQ(incomplete_tail("\xE2\x82"), 2u);
  EXPECT_EQ(incomplete_tail("x\xF0\x9F\x99"), 3u);
  EXPECT_EQ(incomplete_tail("x\xF0\x9F\x99\x82"), 0u);
  EXPECT_EQ(incomplete_tail("\xE0\x80"), 0u);  // no character begins like this
  EXPECT_EQ(incomplete_tail("\x80\x80\x80\x80"), 0u);
  EXPECT_EQ(incomplete_tail("\xFF"), 0u);
}

TEST(Utf8, BytesHaveCharactersAndBack) {
  std::string text, bytes;
  for (int byte = 0; byte < 256; ++byte) append_char(char_of_byte(static_cast<unsigned char>(byte)), text);
  EXPECT_TRUE(text.starts_with("\u0100\u0101"));
  EXPECT_EQ(char_of_byte(' '), 0x120u);
  ASSERT_TRUE(bytes_of_chars(text, bytes));
  for (size_t byte = 0; byte < 256; ++byte) EXPECT_EQ(static_cast<unsigned char>(bytes[byte]), byte);
  EXPECT_FALSE(bytes_of_chars("a b", bytes));
  EXPECT_FALSE(bytes_of_chars("\u2581", bytes));
}

std::string mapped(const std::string& text, int options) {
  utf8proc_uint8_t* result = nullptr;
  const auto bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  std::string copy(reinterpret_cast<const char*>(result), static_cast<size_t>(bytes));
  std::free(result);
  return copy;
}

TEST(Normalizer, CharactersThatAreSkippedNeitherChangeNorJoinAnother) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_char(code, text);
    const auto number = static_cast<uint32_t>(code);
    if (is_inert(code)) {
      EXPECT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class, 0) << number;
      for (const int options :
           std::initializer_list<int>{UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE, UTF8PROC_COMPOSE | UTF8PROC_COMPAT}) {
        ASSERT_EQ(mapped(text, options), text) << number;
      }
    } else if (code < 0x300) {
      ASSERT_EQ(mapped(text, UTF8PROC_COMPOSE), text) << number;
    }
    // The parts of a decomposed character, after the first.
    const std::string parts = mapped(text, UTF8PROC_DECOMPOSE);
    for (size_t at = first_char(parts).bytes, bytes = 0; at < parts.size(); at += bytes) {
      const TextChar part = first_char(std::string_view(parts).substr(at));
      ASSERT_FALSE(is_inert(part.code) || part.code < 0x300) << number;
      bytes = part.bytes;
    }
  }
}

std::string normal_form(std::string_view text, NormalForm form = NormalForm::kNfc) {
  std::string storage;
  return std::string(unicode_normalizer(form)(text, storage));
}

TEST(Normalizer, NormalForms) {
  EXPECT_EQ(normal_form("xe\u0301y e\u0301"), "x\u00E9y \u00E9");
  EXPECT_EQ(normal_form("a\u0307\u0323"), "\u1EA1\u0307");
  EXPECT_EQ(normal_form("\u1100\u1161\u11A8\uAC00\u11A8"), "\uAC01\uAC01");
  EXPECT_EQ(normal_form("\u0301a"), "\u0301a");
  EXPECT_EQ(normal_form("\u212B and \uFB01"), "\u00C5 and \uFB01");
  EXPECT_EQ(normal_form("\u212B \uFB01", NormalForm::kNfkc), "\u00C5 fi");
  EXPECT_EQ(normal_form("\u00E9\u00BD", NormalForm::kNfd), "e\u0301\u00BD");
  EXPECT_EQ(normal_form("\u00E9\u00BD", NormalForm::kNfkd), "e\u03011\u20442");
  const std::string plain = "plain \u4F60\u597D \u041F\u0440\u0438 caf\u00E9";
  std::string storage;
  EXPECT_EQ(unicode_normalizer(NormalForm::kNfc)(plain, storage).data(), plain.data());
}

std::vector<std::string> words_of(const PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string> words;
  pre_tokenizer.cut({text, true}, [&words](const Piece& piece) { words.emplace_back(piece.text); });
  return words;
}

using Words = std::vector<std::string>;

TEST(PreTokenizer, DelimitersGoWhereTheBehaviorSays) {
  const auto cut = [](DelimiterUse use, bool inverted) {
    const Regex pattern("-", RegexDialect::kOniguruma, "here");
    return words_of(split_pre_tokenizer(pattern, {.use = use, .inverted = inverted}), "-a--b-");
  };
  EXPECT_EQ(cut(DelimiterUse::kRemoved, false), (Words{"a", "b"}));
  EXPECT_EQ(cut(DelimiterUse::kIsolated, false), (Words{"-", "a", "-", "-", "b", "-"}));
  EXPECT_EQ(cut(DelimiterUse::kMergedWithPrevious, false), (Words{"-", "a-", "-", "b-"}));
  EXPECT_EQ(cut(DelimiterUse::kMergedWithNext, false), (Words{"-a", "-", "-b", "-"}));
  EXPECT_EQ(cut(DelimiterUse::kContiguous, false), (Words{"-", "a", "--", "b", "-"}));
  EXPECT_EQ(cut(DelimiterUse::kRemoved, true), (Words{"-", "-", "-", "-"}));
}

TEST(PreTokenizer, PatternsCutAsTheirEnginesDo) {
  const auto cut = [](std::string_view name, RegexDialect dialect, std::string_view text) {
    return words_of(split_pre_tokenizer({std::string(find_pattern(name)->regex), dialect, "here"}), text);
  };
  EXPECT_EQ(cut("gpt2", RegexDialect::kOniguruma, "It's  12345\n\n x"),
            (Words{"It", "'s", " ", " 12345", "\n\n", " x"}));
  EXPECT_EQ(cut("llama3", RegexDialect::kOniguruma, "I'LL 12345\n  x"),
            (Words{"I", "'LL", " ", "123", "45", "\n", " ", " x"}));
  // tiktoken's cl100k takes all white space at the end as one word; Llama 3's pattern does not.
  EXPECT_EQ(cut("cl100k", RegexDialect::kRust, "x\n  "), (Words{"x", "\n  "}));
  EXPECT_EQ(cut("llama3", RegexDialect::kRust, "x\n  "), (Words{"x", "\n", "  "}));
  EXPECT_EQ(cut("o200k", RegexDialect::kRust, "HTTPServer isn't"), (Words{"HTTPServer", " isn't"}));
  EXPECT_EQ(cut("gpt2", RegexDialect::kOniguruma, "a\u180Eb"), (Words{"a", "\u180E", "b"}));  // no space
}

TEST(Regex, ClassesOfPosixAreMembersOfAClass) {
  int count = 0;
  Regex("[[:digit:]\\s]", RegexDialect::kOniguruma, "here").for_each_match("a1 ]", [&](size_t, size_t) { ++count; });
  EXPECT_EQ(count, 2);
}

TEST(Regex, WhiteSpaceIsThatOfUnicodeToday) {
  const auto matches = [](const std::string& pattern, std::string_view text) {
    int count = 0;
    Regex(pattern, RegexDialect::kOniguruma, "here").for_each_match(text, [&](size_t, size_t) { ++count; });
    return count;
  };
  const std::string spaces = "\t \u0085\u00A0\u2003\u2028\u3000", others = "\u180E\u200B\uFEFF";
  for (const std::string pattern : {"\\s", "[\\s]", "[a\\s]"}) {
    EXPECT_EQ(matches(pattern, spaces), 7) << pattern;
    EXPECT_EQ(matches(pattern, others), 0) << pattern;
  }
  EXPECT_EQ(matches("\\S", spaces + others), 3);
  EXPECT_EQ(matches("[^\\s]", spaces + others), 3);
}

TEST(Regex, EmptyMatchesAndLongTextsEnd) {
  int matches = 0;
  Regex("x*", RegexDialect::kOniguruma, "here").for_each_match("a\u00E9xxb", [&](size_t, size_t) { ++matches; });
  EXPECT_EQ(matches, 5);  // before a, before é, xx, before b, at the end
  size_t last = 0;
  const std::string spaces(20'000, ' ');  // more than the compiled code has stack for
  Regex("(?:\\s|y)+(?!\\S)", RegexDialect::kOniguruma, "here").for_each_match(spaces + "x", [&](size_t, size_t end) {
    last = end;
  });
  EXPECT_EQ(last, spaces.size() - 1);
}

std::string parts_of(const AddedTokenMatcher& matcher, std::string_view text, bool skips_special = false) {
  std::string parts;
  for (const TokenOrText& part : matcher.cut(text, skips_special)) {
    parts += part.token ? std::to_string(*part.token) : "(" + std::string(part.text) + ")";
  }
  return parts;
}

TEST(AddedTokens, TheLeftmostAndThenTheLongestIsFound) {
  const AddedTokenMatcher matcher({{.content = "<a>", .id = 1, .special = true},
                                   {.content = "<a><b>", .id = 2},
                                   {.content = "a><", .id = 3},
                                   {.content = "<l>", .id = 4, .lstrip = true},
                                   {.content = "<r>", .id = 5, .rstrip = true},
                                   {.content = "w", .id = 6, .single_word = true}});
  EXPECT_EQ(parts_of(matcher, ""), "");
  EXPECT_EQ(parts_of(matcher, "x<a>y<a><b><a"), "(x)1(y)2(<a)");
  EXPECT_EQ(parts_of(matcher, "x<a>", true), "(x<a>)");
  EXPECT_EQ(parts_of(matcher, "x \t<l> y"), "(x)4( y)");
  EXPECT_EQ(parts_of(matcher, "x <r>\u3000\n y"), "(x )5(y)");
  EXPECT_EQ(parts_of(matcher, "<r>  <l>"), "54");  // the space goes to the first
  EXPECT_EQ(parts_of(matcher, "w ww w_ (w) \u00E9w"), "6( ww w_ ()6() \u00E9w)");
}

// As in tokenizers 0.23.3. Where it ends with an assertion, as for a space in front of the last, the token is gone,
// too.
TEST(AddedTokens, WhiteSpaceThatAnEarlierTokenHasTakenIsGone) {
  const AddedToken taker{.content = "<r>", .id = 5, .rstrip = true};
  const AddedTokenMatcher strips(
      {taker, {.content = " ", .id = 1, .lstrip = true}, {.content = " x", .id = 2, .lstrip = true}});
  EXPECT_EQ(parts_of(strips, "a<r> b"), "(a)5(b)");
  EXPECT_EQ(parts_of(strips, "a<r>  b"), "(a)5(b)");
  EXPECT_EQ(parts_of(strips, "<r>  xy"), "52(y)");
  EXPECT_EQ(parts_of(strips, "a  b"), "(a)11(b)");
  EXPECT_EQ(parts_of(AddedTokenMatcher({taker, {.content = " ", .id = 1}}), "a<r> \tb"), "(a)51(\tb)");
  const AddedToken both{.content = "  ", .id = 3, .lstrip = true, .rstrip = true};
  EXPECT_EQ(parts_of(AddedTokenMatcher({taker, both}), "a<r>   b<r>"), "(a)5(b)5");
}

// Every way to merge, step by step: the lowest rank, then the leftmost, against the heap and the scan.
std::vector<int32_t> merged_slowly(std::string_view word, const std::vector<BpeMerge>& merges) {
  std::vector<int32_t> symbols;
  for (const char c : word) symbols.push_back(c - 'a');
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left == symbols[i] && merges[rank].right == symbols[i + 1]) best = rank, at = i;
      }
    }
    if (best == merges.size()) return symbols;
    symbols[at] = merges[best].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

std::vector<int32_t> encoded(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  bpe.encode(word, *bpe.take_scratch(), ids);
  return ids;
}

TEST(Bpe, UnknownCharactersAreBytesOneTokenOrNothing) {
  BpeOptions options;
  options.tokens = {{"a", 0}, {"?", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}};
  options.by_bytes = false;
  EXPECT_EQ(encoded(Bpe(options), "a\u00E9xxa"), (std::vector<int32_t>{0, 0}));
  options.unknown = 1;
  EXPECT_EQ(encoded(Bpe(options), "a\u00E9xxa"), (std::vector<int32_t>{0, 1, 1, 1, 0}));
  options.fuse_unknown = true;
  EXPECT_EQ(encoded(Bpe(options), "xa\u00E9xxax"), (std::vector<int32_t>{1, 0, 1, 0, 1}));
  options.byte_fallback = true;
  EXPECT_EQ(encoded(Bpe(options), "a\u00E9xxa"), (std::vector<int32_t>{0, 2, 3, 1, 0}));
}

TEST(Bpe, LongWordsThatAreTokensAreKeptApart) {
  BpeOptions options;
  for (int32_t length = 1; length < 300; ++length)
    options.tokens.emplace_back(std::string(static_cast<size_t>(length), 'x'), length);
  options.ignore_merges = true;
  const Bpe bpe(options);
  const auto scratch = bpe.take_scratch();
  for (int round = 0; round < 2; ++round) {
    for (const auto& [text, id] : options.tokens) {
      std::vector<int32_t> ids;
      bpe.encode(text, *scratch, ids);
      ASSERT_EQ(ids, std::vector<int32_t>{id});
    }
  }
}

TEST(Bpe, ShortAndLongWordsAreMergedInOrder) {
  BpeOptions options;
  options.tokens = {{"a", 0}, {"b", 1}, {"c", 2}};
  const auto merge = [&](int32_t left, int32_t right) {
    const auto merged = static_cast<int32_t>(options.tokens.size());
    options.tokens.emplace_back(
        options.tokens[static_cast<size_t>(left)].first + options.tokens[static_cast<size_t>(right)].first, merged);
    options.merges.push_back({left, right, merged});
    return merged;
  };
  const int32_t ab = merge(0, 1), aa = merge(0, 0), bc = merge(1, 2), aaaa = merge(aa, aa);
  merge(ab, ab);
  merge(bc, aa);
  merge(aaaa, bc);
  const std::vector<BpeMerge> merges = options.merges;
  const Bpe bpe(options);
  const auto scratch = bpe.take_scratch();
  uint32_t state = 1;
  for (size_t length = 1; length < 120; ++length) {
    for (int trial = 0; trial < 20; ++trial) {
      std::string word;
      for (size_t i = 0; i < length; ++i) {
        state = state * 1664525 + 1013904223;
        word += static_cast<char>('a' + (state >> 24) % 3);
      }
      std::vector<int32_t> ids;
      bpe.encode(word, *scratch, ids);
      ASSERT_EQ(ids, merged_slowly(word, merges)) << word;
    }
  }
}

}  // namespace
}  // namespace mantissa
