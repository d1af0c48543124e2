// out[c] = sum over rows of x[r][c]: fp32 sums of fixed blocks of rows, then of the blocks in order.
#include "core/kernels/reduction/args.h"

#include "core/cpu/memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduction/column_sum_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Adds four rows at a time, so that the partial sums are loaded and stored once for four rows.
template <typename T>
void sum_block(const T* x, int64_t rows, int64_t columns, float* partial) {
  for_each_vector(columns, [&](int64_t c, int64_t count)
                               MANTISSA_VECTOR_LAMBDA { store(hn::Zero(FloatTag()), partial + c, count); });
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const T* p = x + row * columns;
    for_each_vector(columns, [&](int64_t c, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto first = hn::Add(load(p + c, count), load(p + columns + c, count));
      const auto second = hn::Add(load(p + 2 * columns + c, count), load(p + 3 * columns + c, count));
      store(hn::Add(load(partial + c, count), hn::Add(first, second)), partial + c, count);
    });
  }
  for (; row < rows; ++row) {
    const T* p = x + row * columns;
    for_each_vector(columns, [&](int64_t c, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store(hn::Add(load(partial + c, count), load(p + c, count)), partial + c, count);
    });
  }
}

void column_sum_kernel(const ColumnSumArgs& args, float* partials) {
  const int64_t columns = args.x.shape().last();
  const RowBlocks blocks(args.x.numel() / columns);
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_rows(blocks.count, blocks.rows_per_block * columns, [&](int64_t block) {
      const int64_t begin = blocks.begin(block);
      sum_block(x + begin * columns, blocks.end(block) - begin, columns, partials + block * columns);
    });
  });
  add_partial_sums(partials, blocks.count, columns, columns, args.out.data<float>(), args.mode);
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(column_sum_kernel);

void run(const ColumnSumArgs& args) {
  const Rows rows = check_args(args);
  thread_local Scratch scratch;
  HWY_DYNAMIC_DISPATCH(column_sum_kernel)(args, scratch.reserve_floats(RowBlocks(rows.rows).count * rows.columns));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
