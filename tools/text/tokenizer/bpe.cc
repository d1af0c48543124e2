#include "tools/text/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>
#include <utility>

#include <fmt/core.h>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

constexpr int32_t kNone = -1;
constexpr uint64_t kHashFactor = 0x9E3779B97F4A7C15u;  // 2^64 divided by the golden ratio
constexpr size_t kFewSymbols = 40;                     // up to here, a scan for the lowest rank is faster than a heap

// A word and its tokens, in a cache line. Longer words are rare.
struct CachedWord {
  uint8_t bytes = 0, count = 0;
  char text[34];
  int32_t ids[7];
};
static_assert(sizeof(CachedWord) == 64);
constexpr size_t kCachedWords = size_t{1} << 15;

}  // namespace

class Bpe::Scratch {
 public:
  Scratch() : words_(kCachedWords) {}

  CachedWord* slot(std::string_view word) {
    if (word.size() > sizeof CachedWord::text) return nullptr;
    return &words_[XXH3_64bits(word.data(), word.size()) % kCachedWords];
  }

  std::vector<int32_t> symbols;
  std::vector<Pair> pairs;             // of each symbol and the next one
  std::vector<int32_t> before, after;  // each symbol's neighbours that are left

 private:
  std::vector<CachedWord> words_;  // a new word replaces another one
};

Bpe::Bpe(BpeOptions options) : options_(std::move(options)), ids_(options_.tokens.size()) {
  for (const auto& [text, id] : options_.tokens) ids_.add(text, id);
  byte_ids_.fill(kNone);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text =
        options_.by_bytes ? std::string(1, static_cast<char>(byte)) : fmt::format("<0x{:02X}>", byte);
    if (const auto id = find(text)) byte_ids_[static_cast<size_t>(byte)] = *id;
  }
  const size_t slots = std::bit_ceil(std::max<size_t>(options_.merges.size() * 2, 2));
  shift_ = 64 - std::countr_zero(slots);
  merges_.resize(slots);
  for (size_t rank = 0; rank < options_.merges.size(); ++rank) {
    const BpeMerge& merge = options_.merges[rank];
    const uint64_t key = pair_of(merge.left, merge.right);
    size_t at = key * kHashFactor >> shift_;
    while (merges_[at].key != kNoPair && merges_[at].key != key) at = (at + 1) & (slots - 1);
    merges_[at] = {key, {static_cast<int32_t>(rank), merge.merged}};
  }
  options_.merges = {};
}

Bpe::~Bpe() = default;

bool Bpe::merges_across(std::string_view mark) const {
  return std::any_of(options_.tokens.begin(), options_.tokens.end(), [mark](const auto& token) {
    std::string_view text = token.first;
    while (text.starts_with(mark)) text.remove_prefix(mark.size());
    return text.find(mark) != std::string_view::npos;
  });
}

std::shared_ptr<Bpe::Scratch> Bpe::take_scratch() const {
  std::unique_ptr<Scratch> scratch;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      scratch = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (scratch == nullptr) scratch = std::make_unique<Scratch>();
  return {scratch.release(), [this](Scratch* used) {
            const std::lock_guard lock(mutex_);
            idle_.emplace_back(used);
          }};
}

Bpe::Pair Bpe::find_pair(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t at = pair * kHashFactor >> shift_;; at = (at + 1) & (merges_.size() - 1)) {
    if (merges_[at].key == pair) return merges_[at].pair;
    if (merges_[at].key == kNoPair) return {};
  }
}

void Bpe::add_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool is_pending = false;  // an unknown token that others may join
  const auto id_of_byte = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  while (!word.empty()) {
    const std::string_view text = word.substr(0, options_.by_bytes ? 1 : first_char(word).bytes);
    word.remove_prefix(text.size());
    const int32_t id = options_.by_bytes ? id_of_byte(text[0]) : find(text).value_or(kNone);
    if (id != kNone) {
      symbols.push_back(id);
      is_pending = false;
    } else if (options_.byte_fallback &&
               std::all_of(text.begin(), text.end(), [&](char byte) { return id_of_byte(byte) != kNone; })) {
      for (const char byte : text) symbols.push_back(id_of_byte(byte));
    } else {
      if (options_.unknown && !(is_pending && options_.fuse_unknown)) symbols.push_back(*options_.unknown);
      is_pending = true;
    }
  }
}

// Finds the lowest rank by a scan, and closes the gap that a merge leaves.
void Bpe::merge_few(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& pairs = scratch.pairs;
  const auto set_pair = [&](size_t i) {
    pairs[i] = i + 1 < symbols.size() ? find_pair(symbols[i], symbols[i + 1]) : Pair{};
  };
  pairs.resize(symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) set_pair(i);
  while (true) {
    const auto lowest = std::min_element(pairs.begin(), pairs.end(), [](Pair a, Pair b) { return a.rank < b.rank; });
    if (lowest->rank == kNoRank) return;
    const auto at = lowest - pairs.begin();
    symbols[static_cast<size_t>(at)] = lowest->merged;
    symbols.erase(symbols.begin() + at + 1);
    pairs.erase(pairs.begin() + at + 1);
    set_pair(static_cast<size_t>(at));
    if (at > 0) set_pair(static_cast<size_t>(at) - 1);
  }
}

// A heap of candidates, each a rank and a place. Candidates that a merge beside them made void stay in it.
void Bpe::merge_many(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  const auto count = static_cast<int32_t>(symbols.size());
  const auto at = [](auto& values, int32_t i) -> auto& { return values[static_cast<size_t>(i)]; };
  scratch.before.resize(symbols.size());
  scratch.after.resize(symbols.size());
  scratch.pairs.resize(symbols.size());
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue;
  const auto set_pair = [&](int32_t i) {
    const int32_t next = at(scratch.after, i);
    Pair& pair = at(scratch.pairs, i);
    pair = next < count ? find_pair(at(symbols, i), at(symbols, next)) : Pair{};
    if (pair.rank != kNoRank) queue.push(pair_of(pair.rank, i));
  };
  for (int32_t i = 0; i < count; ++i) {
    at(scratch.before, i) = i - 1;
    at(scratch.after, i) = i + 1;
  }
  for (int32_t i = 0; i < count; ++i) set_pair(i);
  while (!queue.empty()) {
    const auto rank = static_cast<int32_t>(queue.top() >> 32);
    const auto i = static_cast<int32_t>(queue.top() & 0xFFFFFFFFu);
    queue.pop();
    if (at(symbols, i) == kNone || at(scratch.pairs, i).rank != rank) continue;
    const int32_t gone = at(scratch.after, i);
    const int32_t next = at(scratch.after, gone);
    at(symbols, i) = at(scratch.pairs, i).merged;
    at(symbols, gone) = kNone;
    at(scratch.after, i) = next;
    if (next < count) at(scratch.before, next) = i;
    set_pair(i);
    if (at(scratch.before, i) >= 0) set_pair(at(scratch.before, i));
  }
  std::erase(symbols, kNone);
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  CachedWord* const cached = scratch.slot(word);
  if (cached != nullptr && cached->bytes == word.size() && std::memcmp(cached->text, word.data(), word.size()) == 0) {
    ids.insert(ids.end(), cached->ids, cached->ids + cached->count);
    return;
  }
  auto& symbols = scratch.symbols;
  symbols.clear();
  if (const auto whole = options_.ignore_merges ? find(word) : std::nullopt) {
    symbols.push_back(*whole);
  } else {
    add_symbols(word, symbols);
    if (symbols.size() > kFewSymbols) {
      merge_many(scratch);
    } else if (symbols.size() > 1) {
      merge_few(scratch);
    }
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (cached == nullptr || symbols.size() > std::size(cached->ids)) return;
  cached->bytes = static_cast<uint8_t>(word.size());
  cached->count = static_cast<uint8_t>(symbols.size());
  std::copy(word.begin(), word.end(), cached->text);
  std::copy(symbols.begin(), symbols.end(), cached->ids);
}

}  // namespace mantissa
