// Adds partial sums of fixed blocks in order, so the number of threads does not matter. Plain loops suffice: only
// sampled steps use this.
#include "core/kernels/probe/args.h"

#include <cstring>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/kernels/check_args.h"

namespace mantissa::cpu {
namespace {

template <typename T>
ErrorSums compare_block(const T* x, const float* reference, int64_t n) {
  ErrorSums sums;
  for (int64_t i = 0; i < n; ++i) sums.add(to_float(x[i]), reference[i]);
  return sums;
}

}  // namespace

void run(const CompareArgs& args) {
  check_args(args);
  const int64_t numel = args.x.numel();
  std::vector<ErrorSums> blocks(static_cast<size_t>(divide_up(numel, kBlockElements)));
  const float* const reference = args.reference.data<float>();
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    parallel_blocks(numel, [&](int64_t begin, int64_t count) {
      blocks[static_cast<size_t>(begin / kBlockElements)] = compare_block(x + begin, reference + begin, count);
    });
  });
  ErrorSums total;
  if (args.mode == GradientMode::kAccumulate) total = read_record<ErrorSums>(args.record);
  for (const ErrorSums& block : blocks) total += block;
  std::memcpy(args.record.raw(), &total, sizeof(total));
}

}  // namespace mantissa::cpu
