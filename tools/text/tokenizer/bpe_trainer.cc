#include "tools/text/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/progress_bar.h"
#include "core/base/thread_team.h"
#include "tools/text/tokenizer/tokenizer.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

using WordCounts = std::unordered_map<std::string, int64_t>;
using PairKey = uint64_t;  // Bpe::pair_of()

// tokenizer.json cannot spell cl100k's own pattern; OpenAI's earlier spelling is llama3's.
const TextPattern& pattern_of(const BpeTrainerOptions& options) {
  return *find_pattern(options.pattern == "cl100k" ? "llama3" : options.pattern);
}
bool is_normalized(const BpeTrainerOptions& options) { return options.pattern.starts_with("qwen"); }

WordCounts count_words(std::span<const std::string_view> texts, const BpeTrainerOptions& options) {
  const PreTokenizer pre_tokenizer =
      split_pre_tokenizer({std::string(pattern_of(options).regex), RegexDialect::kOniguruma, options.pattern});
  std::vector<Normalizer> normalizers;
  if (is_normalized(options)) normalizers.push_back(unicode_normalizer(NormalForm::kNfc));

  std::vector<Piece> chunks;
  std::vector<std::string> repaired(texts.size());  // where a text is not valid UTF-8
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<Piece> parts = chunks_of({as_utf8(texts[i], repaired[i]), false}, " ");
    chunks.insert(chunks.end(), parts.begin(), parts.end());
  }
  std::vector<WordCounts> by_thread(static_cast<size_t>(threads()));
  const int64_t total = std::ssize(chunks), round = std::max<int64_t>(total / 100, 16 * threads());
  ProgressBar progress("words: chunks of text", total);
  for (int64_t begin = 0; begin < total; begin += round) {
    parallel_for(std::min(round, total - begin), [&](int64_t i) {
      std::string storage;
      const std::string_view text = normalized(normalizers, chunks[static_cast<size_t>(begin + i)].text, storage);
      WordCounts& counts = by_thread[static_cast<size_t>(current_thread())];
      pre_tokenizer.cut({text, false}, [&counts](const Piece& word) { ++counts[std::string(word.text)]; });
    });
    progress.reach(begin + round);
  }
  WordCounts counts = std::move(by_thread.front());
  for (size_t thread = 1; thread < by_thread.size(); ++thread) {
    for (const auto& [word, count] : by_thread[thread]) counts[word] += count;
  }
  return counts;
}

// A pair to merge: how often it occurred when this was noted, and the words in which it was new then.
struct Candidate {
  int64_t count = 0;
  PairKey pair = 0;
  std::vector<int32_t> words;

  // The most frequent pair comes first; among equal counts, the pair with the smallest ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const BpeTrainerOptions& options) : options_(options) {
    for (const std::string& token : options.special_tokens) id_of(token);
    std::array<int32_t, 256> byte_ids{};
    std::vector<int> bytes(256);
    std::iota(bytes.begin(), bytes.end(), 0);
    std::sort(bytes.begin(), bytes.end(), [](int a, int b) {
      return char_of_byte(static_cast<unsigned char>(a)) < char_of_byte(static_cast<unsigned char>(b));
    });
    for (const int byte : bytes) {
      std::string text;
      append_char(char_of_byte(static_cast<unsigned char>(byte)), text);
      byte_ids[static_cast<size_t>(byte)] = id_of(text);
    }
    begins_.push_back(0);
    for (const auto& [word, count] : words) {
      for (const char byte : word) symbols_.push_back(byte_ids[static_cast<unsigned char>(byte)]);
      begins_.push_back(symbols_.size());
      lengths_.push_back(word.size());
      counts_.push_back(count);
    }
  }

  TrainedBpe run() {
    for (int32_t word = 0; word < static_cast<int32_t>(lengths_.size()); ++word) {
      const std::span<const int32_t> symbols = symbols_of(word);
      for (size_t i = 0; i + 1 < symbols.size(); ++i) note(symbols[i], symbols[i + 1], word, 1);
    }
    queue_noted();
    ProgressBar progress("tokenizer: tokens", options_.vocab);
    while (static_cast<int64_t>(trained_.tokens.size()) < options_.vocab && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate best = std::move(queue_.back());
      queue_.pop_back();
      if (const int64_t count = pair_counts_[best.pair]; count != best.count) {
        best.count = count;
        queue(std::move(best));
        continue;
      }
      if (best.count < std::max<int64_t>(1, options_.min_frequency)) break;
      merge(best);
      progress.reach(std::ssize(trained_.tokens));
    }
    // A pair that was merged twice has the later rank.
    auto& merges = trained_.merges;
    std::unordered_set<PairKey> later;
    const auto kept = std::remove_if(merges.rbegin(), merges.rend(), [&](const auto& merge) {
      return !later.insert(Bpe::pair_of(merge.first, merge.second)).second;
    });
    merges.erase(merges.begin(), kept.base());
    return std::move(trained_);
  }

 private:
  int32_t id_of(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<int32_t>(trained_.tokens.size()));
    if (is_new) trained_.tokens.push_back(token);
    return found->second;
  }
  std::span<int32_t> symbols_of(int32_t word) {
    const auto index = static_cast<size_t>(word);
    return std::span(symbols_).subspan(begins_[index], lengths_[index]);
  }

  // The pair occurs `change` times more in the word.
  void note(int32_t left, int32_t right, int32_t word, int change) {
    const PairKey pair = Bpe::pair_of(left, right);
    pair_counts_[pair] += change * counts_[static_cast<size_t>(word)];
    if (change < 0) return;
    std::vector<int32_t>& words = noted_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }
  void queue(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }
  void queue_noted() {
    for (auto& [pair, words] : noted_) {
      if (const int64_t count = pair_counts_[pair]; count > 0) queue({count, pair, std::move(words)});
    }
    noted_.clear();
  }

  // As in Hugging Face's trainer, a candidate names the words in which its pair was new, and the count of a merged pair
  // stays. If a merge makes a token that exists, the token's pairs are merged in some words now, in others later.
  void merge(const Candidate& best) {
    const auto left = static_cast<int32_t>(best.pair >> 32), right = static_cast<int32_t>(best.pair & 0xFFFFFFFFu);
    const int32_t merged =
        id_of(trained_.tokens[static_cast<size_t>(left)] + trained_.tokens[static_cast<size_t>(right)]);
    trained_.merges.emplace_back(left, right);
    for (const int32_t word : best.words) {
      const std::span<int32_t> symbols = symbols_of(word);
      size_t kept = 0;
      for (size_t i = 0; i < symbols.size(); ++i) {
        if (i + 1 == symbols.size() || symbols[i] != left || symbols[i + 1] != right) {
          symbols[kept++] = symbols[i];
          continue;
        }
        if (kept > 0) {
          note(symbols[kept - 1], left, word, -1);
          note(symbols[kept - 1], merged, word, 1);
        }
        if (i + 2 < symbols.size()) {
          note(right, symbols[i + 2], word, -1);
          note(merged, symbols[i + 2], word, 1);
        }
        symbols[kept++] = merged;
        ++i;
      }
      lengths_[static_cast<size_t>(word)] = kept;
    }
    queue_noted();
  }

  const BpeTrainerOptions& options_;
  TrainedBpe trained_;
  std::unordered_map<std::string, int32_t> ids_;
  // Words, each in its part of symbols_, of which the first `length` are left.
  std::vector<int32_t> symbols_;
  std::vector<size_t> begins_, lengths_;
  std::vector<int64_t> counts_;
  std::unordered_map<PairKey, int64_t> pair_counts_;
  std::unordered_map<PairKey, std::vector<int32_t>> noted_;  // pairs that the last merge made, and where
  std::vector<Candidate> queue_;
};

}  // namespace

std::vector<std::string> trainable_patterns() {
  std::vector<std::string> names;
  for (const TextPattern& pattern : known_patterns()) names.emplace_back(pattern.name);
  return names;
}

TrainedBpe train_bpe(std::span<const std::string_view> texts, const BpeTrainerOptions& options) {
  const auto patterns = trainable_patterns();
  require<ConfigError>(std::find(patterns.begin(), patterns.end(), options.pattern) != patterns.end(),
                       "the pattern must be one of {}, got '{}'", fmt::join(patterns, ", "), options.pattern);
  const auto least = static_cast<int64_t>(256 + options.special_tokens.size());
  require<ConfigError>(options.vocab >= least,
                       "the vocabulary needs {} tokens for the 256 bytes and {} special tokens, got {}", least,
                       options.special_tokens.size(), options.vocab);
  return Trainer(count_words(texts, options), options).run();
}

std::string to_tokenizer_json(const TrainedBpe& trained, const BpeTrainerOptions& options) {
  using Json = nlohmann::ordered_json;
  const bool is_gpt2 = options.pattern == "gpt2";
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", is_gpt2}};
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", Json::array()}};
  for (size_t id = 0; id < options.special_tokens.size(); ++id) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", options.special_tokens[id]},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  json["normalizer"] = is_normalized(options) ? Json{{"type", "NFC"}} : Json();
  if (is_gpt2) {
    json["pre_tokenizer"] = byte_level;
  } else {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern_of(options).regex}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}};
  }
  json["post_processor"] = nullptr;
  json["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false}};
  Json::object_t vocab;
  for (size_t id = 0; id < trained.tokens.size(); ++id) {
    vocab.Json::object_t::Container::emplace_back(trained.tokens[id], id);  // without a search for an equal key
  }
  model["vocab"] = std::move(vocab);
  model["merges"] = Json::array();
  for (const auto& [left, right] : trained.merges) {
    model["merges"].push_back({trained.tokens[static_cast<size_t>(left)], trained.tokens[static_cast<size_t>(right)]});
  }
  json["model"] = std::move(model);
  return json.dump(2);
}

}  // namespace mantissa
