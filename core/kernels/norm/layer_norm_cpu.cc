// Layer normalisation over the last axis, in fp32 with one rounding on store:
//   xhat = (x - mean) rstd,  y = xhat weight + bias,  rstd = 1 / sqrt(var + epsilon), var = mean((x - mean)^2).
// Two passes, mean first: the one-pass form E[x^2] - mean^2 cancels when |mean| >> deviation.
//
// Backward, with g = weight dy:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),  d_weight = sum dy xhat,  d_bias = sum dy over rows,
// where d_weight and d_bias are fp32 sums of fixed blocks of rows, then of the blocks in order.
//
// Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
#include "core/kernels/norm/args.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/memory.h"
#include "core/kernels/check_args.h"
#include "core/kernels/kernel_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm/layer_norm_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

struct RowStatistics {
  float mean;
  float rstd;
};

HWY_INLINE RowStatistics forward_row(const float* x, const float* weight, const float* bias, float epsilon,
                                     int64_t columns, float* y) {
  const FloatTag df;
  const float mean =
      sum_vectors(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { return load(x + i, count); }) /
      static_cast<float>(columns);
  const auto mean_vector = hn::Set(df, mean);
  const float variance = sum_vectors(columns,
                                     [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
                                       const auto centered =
                                           zero_beyond(hn::Sub(load(x + i, count), mean_vector), count);
                                       return hn::Mul(centered, centered);
                                     }) /
                         static_cast<float>(columns);
  const float rstd = 1.0f / std::sqrt(variance + epsilon);
  const auto rstd_vector = hn::Set(df, rstd);
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(hn::Sub(load(x + i, count), mean_vector), rstd_vector);
    store(hn::MulAdd(xhat, load(weight + i, count), load(bias + i, count)), y + i, count);
  });
  return {mean, rstd};
}

void layer_norm_forward_kernel(const LayerNormForwardArgs& args, const RowScratch& scratch) {
  const int64_t columns = args.x.shape().last();
  const float* weight = RowReader(args.weight, columns).read(0, scratch.shared(0));
  const float* bias = scratch.shared(1);
  if (args.bias.defined()) {
    bias = RowReader(args.bias, columns).read(0, scratch.shared(1));
  } else {
    std::fill_n(scratch.shared(1), columns, 0.0f);
  }
  const SumReader reader(args.x, args.residual, args.sum, columns);
  const RowWriter writer(args.y, columns, GradientMode::kWrite);
  float* const means = args.mean.data<float>();
  float* const rstds = args.rstd.data<float>();
  parallel_rows(args.x.numel() / columns, columns, [&](int64_t row) {
    float* y = writer.target(row, scratch.own(1));
    const float* x = reader.read(row, scratch.own(0), scratch.own(2));
    const RowStatistics statistics = forward_row(x, weight, bias, args.epsilon, columns, y);
    writer.finish(row, y);
    means[row] = statistics.mean;
    rstds[row] = statistics.rstd;
  });
}

// One row: dx, and its share added to the block's d_weight and d_bias.
HWY_INLINE void backward_row(const float* x, const float* dy, const float* weight, float mean, float rstd,
                             int64_t columns, float* dx, float* d_weight, float* d_bias) {
  const FloatTag df;
  const auto mean_vector = hn::Set(df, mean);
  const auto rstd_vector = hn::Set(df, rstd);
  auto sum_g = hn::Zero(df), sum_g_xhat = hn::Zero(df);
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto d = load(dy + i, count);
    const auto xhat = hn::Mul(hn::Sub(load(x + i, count), mean_vector), rstd_vector);
    const auto d_xhat = hn::Mul(d, xhat);
    const auto w = load(weight + i, count);
    sum_g = hn::MulAdd(d, w, sum_g);  // d and w are 0 beyond count
    sum_g_xhat = hn::MulAdd(d_xhat, w, sum_g_xhat);
    store(hn::Add(load(d_weight + i, count), d_xhat), d_weight + i, count);
    store(hn::Add(load(d_bias + i, count), d), d_bias + i, count);
  });
  const float count_inverse = 1.0f / static_cast<float>(columns);
  const auto mean_g = hn::Mul(hn::SumOfLanes(df, sum_g), hn::Set(df, count_inverse));
  const auto mean_g_xhat = hn::Mul(hn::SumOfLanes(df, sum_g_xhat), hn::Set(df, count_inverse));
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto xhat = hn::Mul(hn::Sub(load(x + i, count), mean_vector), rstd_vector);
    const auto g = hn::Mul(load(dy + i, count), load(weight + i, count));
    store(hn::Mul(rstd_vector, hn::NegMulAdd(xhat, mean_g_xhat, hn::Sub(g, mean_g))), dx + i, count);
  });
}

void layer_norm_backward_kernel(const LayerNormBackwardArgs& args, const RowScratch& scratch) {
  const int64_t columns = args.x.shape().last();
  const RowBlocks blocks(args.x.numel() / columns);
  const float* weight = RowReader(args.weight, columns).read(0, scratch.shared(0));
  const RowReader x_reader(args.x, columns), dy_reader(args.dy, columns);
  const RowWriter writer(args.dx, columns, args.mode);
  const float* const means = args.mean.data<float>();
  const float* const rstds = args.rstd.data<float>();
  parallel_rows(blocks.count, blocks.rows_per_block * columns, [&](int64_t block) {
    float* d_weight = scratch.partial(block);
    float* d_bias = scratch.partial(blocks.count + block);
    std::fill_n(d_weight, columns, 0.0f);
    std::fill_n(d_bias, columns, 0.0f);
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
      const float* x = x_reader.read(row, scratch.own(0));
      const float* dy = dy_reader.read(row, scratch.own(1));
      float* dx = writer.target(row, scratch.own(2));
      backward_row(x, dy, weight, means[row], rstds[row], columns, dx, d_weight, d_bias);
      writer.finish(row, dx);
    }
  });
  add_partial_sums(scratch.partial(0), blocks.count, scratch.stride(), columns, args.d_weight.data<float>(),
                   args.weight_mode);
  if (args.d_bias.defined()) {
    add_partial_sums(scratch.partial(blocks.count), blocks.count, scratch.stride(), columns, args.d_bias.data<float>(),
                     args.bias_mode);
  }
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(layer_norm_forward_kernel);
HWY_EXPORT(layer_norm_backward_kernel);

void run(const LayerNormForwardArgs& args) {
  const Rows rows = check_args(args);
  HWY_DYNAMIC_DISPATCH(layer_norm_forward_kernel)(args, RowScratch(rows.columns, 2, 3, 0));
}

void run(const LayerNormBackwardArgs& args) {
  const Rows rows = check_args(args);
  const int64_t blocks = RowBlocks(rows.rows).count;
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_kernel)(args, RowScratch(rows.columns, 1, 3, 2 * blocks));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
