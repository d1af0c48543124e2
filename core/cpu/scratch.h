// Scratch: one thread's reusable buffer. It grows to the largest request and is kept, so that the steady state
// allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/base/round_up.h"

namespace mantissa::cpu {

class Scratch {
 public:
  static constexpr size_t kAlignmentBytes = 64;

  // At least `bytes`, 64-byte aligned, uninitialised. Large buffers use huge pages where the system grants them.
  // Invalidates earlier results. ConfigError if memory is short.
  std::byte* reserve(size_t bytes) {
    if (bytes > capacity_bytes_) grow(bytes);
    return data_.get();
  }

 private:
  void grow(size_t bytes);

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t capacity_bytes_ = 0;
};

// Divides one reserved block into aligned pieces. Run the same sequence twice, first without memory to learn the size.
class ScratchLayout {
 public:
  explicit ScratchLayout(std::byte* base = nullptr) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    const size_t offset = used_bytes_;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    used_bytes_ += round_up(bytes, Scratch::kAlignmentBytes);
    return base_ ? reinterpret_cast<T*>(base_ + offset) : nullptr;
  }
  size_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* base_;
  size_t used_bytes_ = 0;
};

}  // namespace mantissa::cpu
