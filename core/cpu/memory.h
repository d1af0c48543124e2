// Host memory: zeroed blocks for tensors, address space for arenas, and scratch memory of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/base/round_up.h"
#include "core/base/thread_team.h"
#include "core/tensor/tensor.h"

namespace mantissa::cpu {

// Zeroed and 64-byte aligned. Blocks of 2 MiB or more get their own pages, starting on a huge-page boundary. Pages are
// huge where the system grants them: a step touches hundreds of megabytes, and with 4 KiB pages the address translation
// takes noticeable time. The end uses small pages, so a block takes less than one small page more than requested.
// Throws MemoryError naming `what` if memory is short.
std::shared_ptr<Storage> allocate_host(size_t bytes, const char* what, Device device);

// Address space whose pages are allocated, zeroed, on first touch.
std::shared_ptr<Storage> reserve_host(size_t bytes, Device device);

// One thread's reusable buffer. It grows to the largest request and is kept, so that the steady state allocates
// nothing.
class Scratch {
 public:
  static constexpr size_t kAlignmentBytes = 64;

  // At least `bytes`, 64-byte aligned, uninitialised. Large buffers use huge pages where the system grants them.
  // Invalidates earlier results. MemoryError if memory is short.
  std::byte* reserve(size_t bytes) {
    if (bytes > capacity_bytes_) grow(bytes);
    return data_.get();
  }
  float* reserve_floats(int64_t count) {
    return reinterpret_cast<float*>(reserve(static_cast<size_t>(count) * sizeof(float)));
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

// Arrays in memory of the calling thread, which the next call for the same type overwrites. `Arrays` is an aggregate
// of, in this order, `ScratchLayout layout`, the extents, the arrays, and `size_t bytes = layout.used_bytes()`.
template <typename Arrays, typename... Extents>
Arrays thread_scratch(const Extents&... extents) {
  thread_local Scratch memory;
  return Arrays{ScratchLayout(memory.reserve(Arrays{ScratchLayout(), extents...}.bytes)), extents...};
}

// Scratch of the kernels that work by rows. The calling thread allocates all of it before the parallel part: shared
// rows (fp32 copies of parameters), working rows of each thread, and partial sums of each block of rows.
class RowScratch {
 public:
  RowScratch(int64_t columns, int64_t shared_rows, int64_t rows_per_thread, int64_t partial_rows)
      : stride_(round_up(columns, 16)), shared_rows_(shared_rows), rows_per_thread_(rows_per_thread) {
    thread_local Scratch scratch;
    const int64_t rows = shared_rows + rows_per_thread * threads();
    base_ = scratch.reserve_floats((rows + partial_rows) * stride_);
    partials_ = base_ + rows * stride_;
  }

  int64_t stride() const { return stride_; }
  float* shared(int64_t index) const { return base_ + index * stride_; }
  // A working row of the current thread, inside the parallel part.
  float* own(int64_t index) const {
    return base_ + (shared_rows_ + rows_per_thread_ * current_thread() + index) * stride_;
  }
  float* partial(int64_t index) const { return partials_ + index * stride_; }

 private:
  int64_t stride_, shared_rows_, rows_per_thread_;
  float *base_, *partials_;
};

}  // namespace mantissa::cpu
