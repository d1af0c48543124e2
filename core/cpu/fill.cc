#include "core/cpu/fill.h"

#include <algorithm>
#include <cstring>

#include "core/cpu/check_args.h"
#include "core/cpu/parallel.h"

namespace mantissa::cpu {

void fill(const Tensor& dst, float value) {
  check_defined("fill", "dst", dst);
  if (!is_floating(dst.dtype())) {
    MANTISSA_CHECK(value == 0.0f, "[fill] a tensor of {} can only be filled with 0, got {}", dst.dtype(), value);
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
