// Byte-pair encoding of a word: symbols are merged in pairs, the pair of the lowest rank first, then the leftmost.
#pragma once

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mantissa {

// Ids of texts. Vocabularies are read into it, with millions of look-ups, and most find nothing. Such a look-up touches
// one cache line, where std::unordered_map follows a list.
class TokenMap {
 public:
  // For at most `count` texts.
  explicit TokenMap(size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

  // The text must outlive the map. Among equal texts, the first counts.
  void add(std::string_view text, int32_t id) {
    Slot& slot = slots_[index_of(text)];
    if (slot.id < 0) slot = {text.data(), static_cast<uint32_t>(text.size()), hash_of(text), id};
  }
  std::optional<int32_t> find(std::string_view text) const {
    const int32_t id = slots_[index_of(text)].id;
    return id < 0 ? std::nullopt : std::optional(id);
  }

 private:
  struct Slot {
    const char* text = nullptr;
    uint32_t size = 0, hash = 0;
    int32_t id = -1;
  };
  static uint32_t hash_of(std::string_view text) {
    return static_cast<uint32_t>(XXH3_64bits(text.data(), text.size()));
  }
  // The index of the text's slot, or of the free slot for it.
  size_t index_of(std::string_view text) const {
    const uint32_t hash = hash_of(text);
    const size_t mask = slots_.size() - 1;
    size_t i = hash & mask;
    while (slots_[i].id >= 0 && !(slots_[i].hash == hash && std::string_view(slots_[i].text, slots_[i].size) == text)) {
      i = (i + 1) & mask;
    }
    return i;
  }

  std::vector<Slot> slots_;
};

struct BpeMerge {
  int32_t left = 0, right = 0, merged = 0;
};

struct BpeOptions {
  std::vector<std::pair<std::string, int32_t>> tokens;  // text and id
  std::vector<BpeMerge> merges;                         // by rank
  bool by_bytes = true;                                 // a symbol is a byte at first, or else a character
  bool ignore_merges = false;                           // a word that is a token is taken whole
  // For a character that is no token: the tokens <0x00> to <0xFF> of its bytes, or this token, or nothing.
  bool byte_fallback = false;
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;  // one unknown token for several in a row
};

class Bpe {
 public:
  explicit Bpe(BpeOptions options);
  ~Bpe();

  // Memory of an encoder, with the words that it met lately. Each thread takes one.
  class Scratch;
  // Appends the word's tokens.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  // From a store of this model, to which it returns.
  std::shared_ptr<Scratch> take_scratch() const;

  std::optional<int32_t> find(std::string_view token) const { return ids_.find(token); }
  // Whether a token holds `mark` after other text, so that merges may cross such a place.
  bool merges_across(std::string_view mark) const;
  // A key that ascends as pairs of ids do.
  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

 private:
  static constexpr int32_t kNoRank = INT32_MAX;
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  // The result of a merge, if the two symbols merge.
  struct Pair {
    int32_t rank = kNoRank, merged = 0;
  };
  struct Slot {
    uint64_t key = kNoPair;
    Pair pair;
  };
  Pair find_pair(int32_t left, int32_t right) const;
  void add_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_few(Scratch& scratch) const;
  void merge_many(Scratch& scratch) const;

  BpeOptions options_;
  TokenMap ids_;                         // into options_.tokens
  std::array<int32_t, 256> byte_ids_{};  // of bytes, or of <0x00> to <0xFF>; -1: none
  std::vector<Slot> merges_;             // a hash table; its size is a power of two
  int shift_ = 0;                        // of a hash, to an index into it
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace mantissa
