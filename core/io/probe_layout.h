// The pieces that probe files are made of, see probe_file.h.
#pragma once

#include <fmt/core.h>
#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace mantissa::probe_layout {

static_assert(std::endian::native == std::endian::little, "probe files are little-endian, and written as memory lies");

inline constexpr std::string_view kMagic = "mtprobe1";
inline constexpr size_t kHeaderStartBytes = kMagic.size() + sizeof(uint32_t);
inline constexpr size_t kHashBytes = sizeof(uint64_t);
inline constexpr size_t kGroupStartBytes = 2 * sizeof(uint32_t) + kHashBytes;

inline uint64_t hash(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

inline void put_bytes(const void* data, size_t size, std::vector<std::byte>& to) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  to.insert(to.end(), bytes, bytes + size);
}

template <typename T>
void put(T value, std::vector<std::byte>& to) {
  static_assert(std::is_arithmetic_v<T>);
  put_bytes(&value, sizeof(value), to);
}

inline void put_text(std::string_view text, std::vector<std::byte>& to) {
  put(static_cast<uint32_t>(text.size()), to);
  put_bytes(text.data(), text.size(), to);
}

// Takes what was put, in order. DataError naming the file where it asks for more than there is: the bytes fit their
// hash and were not written by this program.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  std::span<const std::byte> take_bytes(size_t size) {
    if (size > bytes_.size()) {
      throw DataError(
          fmt::format("{}: expected {} bytes more of a probe file's column, got {}: the file was made by "
                      "another version of this program",
                      path_, size, bytes_.size()));
    }
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string take_text() {
    const auto bytes = take_bytes(take<uint32_t>());
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
};

}  // namespace mantissa::probe_layout
