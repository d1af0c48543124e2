// Reads a plain record from a tensor of bytes in host memory.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/tensor/tensor.h"

namespace mantissa::cpu {

// The tensor must have passed check_record<Record>().
template <typename Record>
Record read_record(const Tensor& tensor) {
  static_assert(std::is_trivially_copyable_v<Record>);
  Record record;
  std::memcpy(&record, tensor.raw(), sizeof(record));
  return record;
}

}  // namespace mantissa::cpu
