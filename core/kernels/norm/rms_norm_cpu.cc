// Root-mean-square normalisation over the last axis, in fp32 with one rounding on store:
//   xhat = x rstd,  y = xhat weight,  rstd = 1 / sqrt(mean(x^2) + epsilon).
//
// Backward, with g = weight dy:
//   dx = rstd (g - xhat mean(g xhat)),  d_weight = sum dy xhat over rows,
// where d_weight is an fp32 sum of fixed blocks of rows, then of the blocks in order.
//
// Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019.
#include "core/kernels/norm/args.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/memory.h"
#include "core/kernels/check_args.h"
#include "core/kernels/kernel_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm/rms_norm_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Returns rstd.
HWY_INLINE float forward_row(const float* x, const float* weight, float epsilon, int64_t columns, float* y) {
  const float sum_squares = sum_vectors(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto v = load(x + i, count);
    return hn::Mul(v, v);
  });
  const float rstd = 1.0f / std::sqrt(sum_squares / static_cast<float>(columns) + epsilon);
  const auto rstd_vector = hn::Set(FloatTag(), rstd);
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store(hn::Mul(hn::Mul(load(x + i, count), rstd_vector), load(weight + i, count)), y + i, count);
  });
  return rstd;
}

void rms_norm_forward_kernel(const RmsNormForwardArgs& args, const RowScratch& scratch) {
  const int64_t columns = args.x.shape().last();
  const float* weight = RowReader(args.weight, columns).read(0, scratch.shared(0));
  const SumReader reader(args.x, args.residual, args.sum, columns);
  const RowWriter writer(args.y, columns, GradientMode::kWrite);
  float* const rstds = args.rstd.data<float>();
  parallel_rows(args.x.numel() / columns, columns, [&](int64_t row) {
    float* y = writer.target(row, scratch.own(1));
    const float* x = reader.read(row, scratch.own(0), scratch.own(2));
    rstds[row] = forward_row(x, weight, args.epsilon, columns, y);
    writer.finish(row, y);
  });
}

// One row: dx, and its share added to the block's d_weight.
HWY_INLINE void backward_row(const float* x, const float* dy, const float* weight, float rstd, int64_t columns,
                             float* dx, float* d_weight) {
  const FloatTag df;
  const auto rstd_vector = hn::Set(df, rstd);
  auto sum_g_xhat = hn::Zero(df);
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(load(x + i, count), rstd_vector);
    const auto d_xhat = hn::Mul(load(dy + i, count), xhat);
    sum_g_xhat = hn::MulAdd(d_xhat, load(weight + i, count), sum_g_xhat);  // 0 beyond count
    store(hn::Add(load(d_weight + i, count), d_xhat), d_weight + i, count);
  });
  const auto mean_g_xhat = hn::Mul(hn::SumOfLanes(df, sum_g_xhat), hn::Set(df, 1.0f / static_cast<float>(columns)));
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(load(x + i, count), rstd_vector);
    const auto g = hn::Mul(load(dy + i, count), load(weight + i, count));
    store(hn::Mul(rstd_vector, hn::NegMulAdd(xhat, mean_g_xhat, g)), dx + i, count);
  });
}

void rms_norm_backward_kernel(const RmsNormBackwardArgs& args, const RowScratch& scratch) {
  const int64_t columns = args.x.shape().last();
  const RowBlocks blocks(args.x.numel() / columns);
  const float* weight = RowReader(args.weight, columns).read(0, scratch.shared(0));
  const RowReader x_reader(args.x, columns), dy_reader(args.dy, columns);
  const RowWriter writer(args.dx, columns, args.mode);
  const float* const rstds = args.rstd.data<float>();
  parallel_rows(blocks.count, blocks.rows_per_block * columns, [&](int64_t block) {
    float* d_weight = scratch.partial(block);
    std::fill_n(d_weight, columns, 0.0f);
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
      const float* x = x_reader.read(row, scratch.own(0));
      const float* dy = dy_reader.read(row, scratch.own(1));
      float* dx = writer.target(row, scratch.own(2));
      backward_row(x, dy, weight, rstds[row], columns, dx, d_weight);
      writer.finish(row, dx);
    }
  });
  add_partial_sums(scratch.partial(0), blocks.count, scratch.stride(), columns, args.d_weight.data<float>(),
                   args.weight_mode);
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(rms_norm_forward_kernel);
HWY_EXPORT(rms_norm_backward_kernel);

void run(const RmsNormForwardArgs& args) {
  const Rows rows = check_args(args);
  HWY_DYNAMIC_DISPATCH(rms_norm_forward_kernel)(args, RowScratch(rows.columns, 1, 3, 0));
}

void run(const RmsNormBackwardArgs& args) {
  const Rows rows = check_args(args);
  const int64_t blocks = RowBlocks(rows.rows).count;
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_kernel)(args, RowScratch(rows.columns, 1, 3, blocks));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
