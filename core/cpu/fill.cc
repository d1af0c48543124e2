#include "core/cpu/fill.h"

#include <algorithm>
#include <cstring>

#include "core/backend/kernel_checks.h"
#include "core/cpu/parallel.h"

namespace mantissa::cpu {

void fill(const Tensor& dst, float value) {
  check_fill_args(dst, value);
  if (!is_floating(dst.dtype())) {
    std::memset(dst.raw(), 0, dst.size_bytes());
    return;
  }
  dispatch(dst.dtype(), [&]<typename T>() {
    T* const data = dst.data<T>();
    const T rounded = from_float<T>(value);
    parallel_blocks(dst.numel(), [&](int64_t begin, int64_t count) { std::fill_n(data + begin, count, rounded); });
  });
}

}  // namespace mantissa::cpu
