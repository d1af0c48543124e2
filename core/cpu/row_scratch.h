// Scratch memory of the kernels that work by rows. The calling thread allocates all of it before the parallel part:
// shared rows (fp32 copies of parameters), working rows for each thread, and partial sums of each block of rows.
#pragma once

#include "core/base/thread_team.h"
#include "core/cpu/scratch.h"

namespace mantissa::cpu {

class RowScratch {
 public:
  RowScratch(int64_t columns, int64_t shared_rows, int64_t rows_per_thread, int64_t partial_rows)
      : stride_((columns + 15) / 16 * 16), shared_rows_(shared_rows), rows_per_thread_(rows_per_thread) {
    thread_local Scratch scratch;
    const int64_t rows = shared_rows + rows_per_thread * threads() + partial_rows;
    base_ = reinterpret_cast<float*>(scratch.reserve(static_cast<size_t>(rows * stride_) * sizeof(float)));
    partials_ = base_ + (shared_rows + rows_per_thread * threads()) * stride_;
  }

  int64_t stride() const { return stride_; }
  float* shared(int64_t index) const { return base_ + index * stride_; }
  // A working row of the current thread, inside the parallel part.
  float* own(int64_t index) const {
    return base_ + (shared_rows_ + rows_per_thread_ * current_thread() + index) * stride_;
  }
  float* partial(int64_t index) const { return partials_ + index * stride_; }

 private:
  int64_t stride_;
  int64_t shared_rows_;
  int64_t rows_per_thread_;
  float* base_;
  float* partials_;
};

}  // namespace mantissa::cpu
