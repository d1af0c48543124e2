// Layer norm and RMS norm over the last axis, in fp32 with one rounding on store; formulas in args.h. Two passes, mean
// first: the one-pass form E[x^2] - mean^2 cancels when |mean| >> deviation.
//
// Backward, with g = weight dy; RMS norm lacks mean(g):
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),  d_weight = sum dy xhat,  d_bias = sum dy over rows,
// where d_weight and d_bias are fp32 sums of fixed blocks of rows, then of the blocks in order.
//
// Sources: Ba, Kiros, Hinton, "Layer Normalization", 2016; Zhang & Sennrich, "Root Mean Square Layer Normalization",
// 2019.
#include "core/kernels/norm/args.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm/norm_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Values common to the elements of a row. The mean is 0 for RMS norm.
template <Norm kNorm>
struct RowStatistics {
  float mean, rstd;

  // xhat of vectors that begin at x.
  HWY_INLINE FloatVec normalized(const float* x, int64_t count) const {
    const FloatTag df;
    auto v = load(x, count);
    if constexpr (kNorm == Norm::kLayer) v = hn::Sub(v, hn::Set(df, mean));
    return hn::Mul(v, hn::Set(df, rstd));
  }
};

// bias: only read for layer norm.
template <Norm kNorm>
HWY_INLINE RowStatistics<kNorm> forward_row(const float* x, const float* weight, const float* bias, float epsilon,
                                            int64_t columns, float* y) {
  const FloatTag df;
  float mean = 0.0f;
  if constexpr (kNorm == Norm::kLayer) {
    mean = sum_vectors(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { return load(x + i, count); }) /
           static_cast<float>(columns);
  }
  const auto mean_vector = hn::Set(df, mean);
  const float mean_square = sum_vectors(columns,
                                        [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
                                          auto v = load(x + i, count);
                                          if constexpr (kNorm == Norm::kLayer) {
                                            v = zero_beyond(hn::Sub(v, mean_vector), count);
                                          }
                                          return hn::Mul(v, v);
                                        }) /
                            static_cast<float>(columns);
  const RowStatistics<kNorm> row{mean, 1.0f / std::sqrt(mean_square + epsilon)};
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto xhat = row.normalized(x + i, count), w = load(weight + i, count);
    if constexpr (kNorm == Norm::kLayer) {
      store(hn::MulAdd(xhat, w, load(bias + i, count)), y + i, count);
    } else {
      store(hn::Mul(xhat, w), y + i, count);
    }
  });
  return row;
}

template <Norm kNorm>
void forward(const LayerNormForwardArgs& args) {
  const int64_t columns = args.x.shape().last();
  const RowScratch scratch(columns, 2, 3, 0);
  const float* weight = RowReader(args.weight, columns).read(0, scratch.shared(0));
  const float* bias = scratch.shared(1);
  if (args.bias.defined()) {
    bias = RowReader(args.bias, columns).read(0, scratch.shared(1));
  } else {
    std::fill_n(scratch.shared(1), columns, 0.0f);
  }
  const SumReader reader(args.x, args.residual, args.sum, columns);
  const RowWriter writer(args.y, columns, GradientMode::kWrite);
  float* const means = data_or_null<float>(args.mean);
  float* const rstds = args.rstd.data<float>();
  parallel_rows(args.heads.rows_of(args.x.numel() / columns), columns, [&](int64_t index) {
    const int64_t row = args.heads.row(index);
    float* y = writer.target(row, scratch.own(1));
    const float* x = reader.read(row, scratch.own(0), scratch.own(2));
    const auto statistics = forward_row<kNorm>(x, weight, bias, args.epsilon, columns, y);
    writer.finish(row, y);
    if constexpr (kNorm == Norm::kLayer) means[index] = statistics.mean;
    rstds[index] = statistics.rstd;
  });
}

// dx of one row. Adds the row's share to the block's d_weight and, for layer norm, d_bias.
template <Norm kNorm>
HWY_INLINE void backward_row(const float* x, const float* dy, const float* weight, const RowStatistics<kNorm>& row,
                             int64_t columns, float* dx, float* d_weight, float* d_bias) {
  const FloatTag df;
  auto sum_g = hn::Zero(df), sum_g_xhat = hn::Zero(df);
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto d = load(dy + i, count);
    const auto d_xhat = hn::Mul(d, row.normalized(x + i, count));
    const auto w = load(weight + i, count);
    if constexpr (kNorm == Norm::kLayer) sum_g = hn::MulAdd(d, w, sum_g);  // d and w are 0 beyond count
    sum_g_xhat = hn::MulAdd(d_xhat, w, sum_g_xhat);
    store(hn::Add(load(d_weight + i, count), d_xhat), d_weight + i, count);
    if constexpr (kNorm == Norm::kLayer) store(hn::Add(load(d_bias + i, count), d), d_bias + i, count);
  });
  const auto count_inverse = hn::Set(df, 1.0f / static_cast<float>(columns));
  const auto mean_g = hn::Mul(hn::SumOfLanes(df, sum_g), count_inverse);
  const auto mean_g_xhat = hn::Mul(hn::SumOfLanes(df, sum_g_xhat), count_inverse);
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto xhat = row.normalized(x + i, count);
    auto g = hn::Mul(load(dy + i, count), load(weight + i, count));
    if constexpr (kNorm == Norm::kLayer) g = hn::Sub(g, mean_g);
    store(hn::Mul(hn::Set(df, row.rstd), hn::NegMulAdd(xhat, mean_g_xhat, g)), dx + i, count);
  });
}

template <Norm kNorm>
void backward(const LayerNormBackwardArgs& args) {
  const int64_t columns = args.x.shape().last();
  const RowBlocks blocks(args.heads.rows_of(args.x.numel() / columns));
  const RowScratch scratch(columns, 1, 3, kNorm == Norm::kLayer ? 2 * blocks.count : blocks.count);
  const float* weight = RowReader(args.weight, columns).read(0, scratch.shared(0));
  const RowReader x_reader(args.x, columns), dy_reader(args.dy, columns);
  const RowWriter writer(args.dx, columns, args.mode);
  const float* const means = data_or_null<float>(args.mean);
  const float* const rstds = args.rstd.data<float>();
  parallel_rows(blocks.count, blocks.rows_per_block * columns, [&](int64_t block) {
    float* d_weight = scratch.partial(block);
    float* d_bias = kNorm == Norm::kLayer ? scratch.partial(blocks.count + block) : nullptr;
    std::fill_n(d_weight, columns, 0.0f);
    if constexpr (kNorm == Norm::kLayer) std::fill_n(d_bias, columns, 0.0f);
    for (int64_t index = blocks.begin(block); index < blocks.end(block); ++index) {
      const int64_t row = args.heads.row(index);
      const float* x = x_reader.read(row, scratch.own(0));
      const float* dy = dy_reader.read(row, scratch.own(1));
      float* dx = writer.target(row, scratch.own(2));
      const RowStatistics<kNorm> statistics{kNorm == Norm::kLayer ? means[index] : 0.0f, rstds[index]};
      backward_row(x, dy, weight, statistics, columns, dx, d_weight, d_bias);
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

void layer_norm_forward(const LayerNormForwardArgs& args) { forward<Norm::kLayer>(args); }
void layer_norm_backward(const LayerNormBackwardArgs& args) { backward<Norm::kLayer>(args); }
void rms_norm_forward(const RmsNormForwardArgs& args) { forward<Norm::kRms>(args.as_layer_norm()); }
void rms_norm_backward(const RmsNormBackwardArgs& args) { backward<Norm::kRms>(args.as_layer_norm()); }

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

MANTISSA_RUN_KERNEL(LayerNormForwardArgs, layer_norm_forward)
MANTISSA_RUN_KERNEL(LayerNormBackwardArgs, layer_norm_backward)
MANTISSA_RUN_KERNEL(RmsNormForwardArgs, rms_norm_forward)
MANTISSA_RUN_KERNEL(RmsNormBackwardArgs, rms_norm_backward)

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
