// TokenMap: ids of texts. Vocabularies are read into it, with millions of look-ups, and most find nothing. Such a
// look-up touches one cache line, where std::unordered_map follows a list.
#pragma once

#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace mantissa {

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

}  // namespace mantissa
