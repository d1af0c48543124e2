// SavedValue: an input that an op's backward function reads, either kept or recomputed.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

class SavedValue {
 public:
  // `tensor`: the value of x, or its cast to another dtype. Kept only if x has no `remake`.
  SavedValue(const Var& x, const Tensor& tensor)
      : kept_(x.remake ? Tensor() : tensor), remake_(x.remake), dtype_(tensor.dtype()) {}

  Tensor get(Tape& tape) const { return remake_ ? tape.cast((*remake_)(tape), dtype_) : kept_; }

 private:
  Tensor kept_;
  std::shared_ptr<const Remake> remake_;
  DType dtype_;
};

}  // namespace mantissa
