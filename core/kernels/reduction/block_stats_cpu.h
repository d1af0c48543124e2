// BlockStats: statistics of the blocks of one tensor. The thread that computes a block writes its statistics. add_to()
// adds them to a record in block order. Only one object at a time per calling thread.
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

  // Statistics of the block that starts with element `begin`.
  TensorStats& operator[](int64_t begin);
  // record (u8, one TensorStats) += all blocks. Element i of the tensor has index index_offset + i.
  void add_to(const Tensor& record, int64_t index_offset) const;

 private:
  std::vector<TensorStats>& blocks_;
};

}  // namespace mantissa::cpu
