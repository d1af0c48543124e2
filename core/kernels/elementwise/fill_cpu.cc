#include "core/kernels/elementwise/args.h"

#include <algorithm>
#include <cstring>

#include "core/cpu/parallel.h"

namespace mantissa::cpu {

void run(const FillArgs& args) {
  check_args(args);
  const Tensor& dst = args.dst;
  if (!is_floating(dst.dtype())) {
    std::memset(dst.raw(), 0, dst.size_bytes());
    return;
  }
  dispatch(dst.dtype(), [&]<typename T>() {
    T* const data = dst.data<T>();
    const T rounded = from_float<T>(args.value);
    parallel_blocks(dst.numel(), [&](int64_t begin, int64_t count) { std::fill_n(data + begin, count, rounded); });
  });
}

}  // namespace mantissa::cpu
