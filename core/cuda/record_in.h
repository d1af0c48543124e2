// Plain records that kernels read and write where they lie.
#pragma once

#include "core/base/check.h"
#include "core/tensor/tensor.h"

namespace mantissa::cuda {

// The address of the first of the records in a tensor of bytes. ContractError where a GPU could not access it.
template <typename Record>
Record* record_in(const char* op, const Tensor& tensor) {
  MANTISSA_CHECK(reinterpret_cast<uintptr_t>(tensor.raw()) % alignof(Record) == 0,
                 "[{}] a record must lie at a multiple of {} bytes on a GPU", op, alignof(Record));
  return reinterpret_cast<Record*>(tensor.raw());
}

}  // namespace mantissa::cuda
