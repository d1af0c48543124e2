// BlockStats: the statistics of the blocks of one tensor, each written by the thread that has the block, and added to a
// record in block order. One at a time on a calling thread.
#pragma once

#include <vector>

#include "core/kernels/reduction/args.h"

namespace mantissa::cpu {

class BlockStats {
 public:
  // For n elements in the blocks of parallel_blocks().
  explicit BlockStats(int64_t n);
  BlockStats(const BlockStats&) = delete;
  BlockStats& operator=(const BlockStats&) = delete;

  // Of the block that starts with element `begin`.
  TensorStats& operator[](int64_t begin);
  // record, u8 of one TensorStats: += all of them. Element i of the tensor has index index_offset + i.
  void add_to(const Tensor& record, int64_t index_offset) const;

 private:
  std::vector<TensorStats>& blocks_;
};

}  // namespace mantissa::cpu
