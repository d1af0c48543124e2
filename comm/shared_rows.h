// SharedRows: what all ranks hold in one place of the memory that they share.
#pragma once

#include <cstdint>

#include "core/tensor/tensor.h"

namespace mantissa {

struct SharedRows {
  // (N, n): row r is rank r's, and begins r * stride elements after row 0. Undefined where there is nothing of the
  // kind.
  Tensor rows{};
  int64_t stride = 0;
};

}  // namespace mantissa
