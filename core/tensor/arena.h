// Arena: the memory of one step's activations and temporaries.
//
// A deterministic best-fit allocator over one reserved region. A block is freed with its last tensor, so that the
// backward pass reuses memory it has freed. The same sequence of requests gives the same addresses in every step. Not
// thread-safe: an arena belongs to the thread that runs the step.
#pragma once

#include <map>
#include <set>

#include "core/tensor/tensor.h"

namespace mantissa {

class Arena {
 public:
  static constexpr size_t kAlignmentBytes = 64;

  // `region` is reserved address space; pages are taken as they are touched.
  explicit Arena(std::shared_ptr<Storage> region);
  ~Arena();
  Arena& operator=(Arena&&) = delete;

  // Uninitialised memory. If it does not fit: Error (kInternal) naming `what`, request and bytes in use.
  Tensor allocate(DType dtype, Shape shape, const char* what = "activation");

  void rewind();  // Ends a step: ContractError if a tensor of the step is still alive.

  // Bytes of the tensors that are alive, at most, and of the region.
  size_t used_bytes() const;
  size_t peak_bytes() const;  // high-water mark of the region since construction
  size_t capacity_bytes() const;

 private:
  struct State;  // shared with live tensors so that a late release stays valid
  std::shared_ptr<State> state_;
};

}  // namespace mantissa
