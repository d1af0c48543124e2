// Row numbers sorted by an integer key of each row; rows of equal key stay in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/stream.h"

namespace mantissa::cuda {

struct alignas(8) KeyedRow {  // read and written in one access
  uint32_t key, row;
};

// Workspace for a sort of `rows` keys in [0, key_limit).
size_t sort_rows_bytes(int64_t rows, int64_t key_limit);

struct SortRowsArgs {
  const int32_t* keys;  // (rows) in [0, key_limit), on the device
  int64_t rows, key_limit;
  std::byte* workspace;  // sort_rows_bytes(), 256-byte aligned
};

// The sorted rows (rows), inside of the workspace.
const KeyedRow* sort_rows(const SortRowsArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
