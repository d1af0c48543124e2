// Matrix products in fp64: c = op(a) op(b), with the epilogues of GemmArgs. See fp64_cpu.h.
//
// op(b) is packed into panels of two vectors of columns; a tile is four rows of op(a) by one panel. Every element is
// one chain of multiply-adds in the order of K.
#include <vector>

#include "core/kernels/fp64/fp64_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/fp64/gemm_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

using DoubleTag = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<DoubleTag>;

constexpr int kFp64Rows = 4, kFp64RowsOfTask = 32;

// Sums of a tile: `a` points at its first row, whose elements are `step` apart. Rows are `row_stride` apart; rows
// beyond `rows` repeat the last one and are not used.
HWY_INLINE void multiply_tile(const double* a, int64_t row_stride, int64_t step, int64_t rows, const double* panel,
                              int64_t depth, double* sums) {
  const DoubleTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const double* row[kFp64Rows];
  for (int64_t i = 0; i < kFp64Rows; ++i) row[i] = a + std::min(i, rows - 1) * row_stride;
  DoubleVec left[kFp64Rows], right[kFp64Rows];
  for (int i = 0; i < kFp64Rows; ++i) left[i] = right[i] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    const auto b0 = hn::LoadU(d, panel + k * 2 * lanes), b1 = hn::LoadU(d, panel + (k * 2 + 1) * lanes);
#pragma GCC unroll 4
    for (int i = 0; i < kFp64Rows; ++i) {
      const auto factor = hn::Set(d, row[i][k * step]);
      left[i] = hn::MulAdd(factor, b0, left[i]);
      right[i] = hn::MulAdd(factor, b1, right[i]);
    }
  }
  for (int i = 0; i < kFp64Rows; ++i) {
    hn::StoreU(left[i], d, sums + i * 2 * lanes);
    hn::StoreU(right[i], d, sums + (i * 2 + 1) * lanes);
  }
}

// Calls finish(row, column, sum) for each element of op(a) op(b).
template <typename Finish>
void multiply_all(const GemmArgs& args, const GemmExtents& e, const Finish& finish) {
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(DoubleTag())), panels = divide_up(e.n, width);
  const bool trans_a = args.trans_a == Transpose::kYes, trans_b = args.trans_b == Transpose::kYes;
  const double *const a = args.a.data<double>(), *const b = args.b.data<double>();
  std::vector<double> packed(static_cast<size_t>(panels * e.k * width));
  parallel_for(panels, [&](int64_t panel) {
    double* const to = packed.data() + panel * e.k * width;
    for (int64_t column = 0; column < std::min(width, e.n - panel * width); ++column) {
      const int64_t from = panel * width + column;
      for (int64_t k = 0; k < e.k; ++k) to[k * width + column] = trans_b ? b[from * e.k + k] : b[k * e.n + from];
    }
  });
  const int64_t row_stride = trans_a ? 1 : e.k, step = trans_a ? e.m : 1;
  parallel_for(divide_up(e.m, kFp64RowsOfTask), [&](int64_t task) {
    double sums[kFp64Rows * 2 * hn::MaxLanes(DoubleTag())];
    const int64_t end = std::min(e.m, (task + 1) * kFp64RowsOfTask);
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (int64_t first = task * kFp64RowsOfTask; first < end; first += kFp64Rows) {
        const int64_t rows = std::min<int64_t>(kFp64Rows, end - first);
        multiply_tile(a + first * row_stride, row_stride, step, rows, packed.data() + panel * e.k * width, e.k, sums);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t column = panel * width; column < std::min(e.n, (panel + 1) * width); ++column) {
            finish(first + i, column, sums[i * width + column - panel * width]);
          }
        }
      }
    }
  });
}

void fp64_gemm_kernel(const GemmArgs& args, const GemmExtents& e) {
  double *const c = args.c.data<double>(), *const aux = data_or_null<double>(args.aux);
  const double* const bias = data_or_null<double>(args.bias);
  const bool accumulates = args.mode == GradientMode::kAccumulate;
  multiply_all(args, e, [&](int64_t row, int64_t column, double sum) {
    const int64_t at = row * e.n + column;
    if (bias != nullptr) sum += bias[column];
    if (args.activation == GemmActivation::kNone) {
      c[at] = accumulates ? c[at] + sum : sum;
    } else if (args.activation == GemmActivation::kGelu) {
      aux[at] = sum;
      c[at] = fp64::gelu_of(sum, args.form);
    } else {
      c[at] = sum * fp64::gelu_slope(aux[at], args.form);
    }
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(fp64_gemm_kernel);

void fp64::run(const GemmArgs& args) {
  const GemmExtents extents = check_args(args);
  MANTISSA_CHECK(!args.a_scale.defined() && !args.b_scale.defined(), "[gemm] fp64 operands have no scales");
  HWY_DYNAMIC_DISPATCH(fp64_gemm_kernel)(args, extents);
  if (!args.bias_gradient.defined()) return;
  run(ColumnSumArgs{.x = args.a, .out = args.bias_gradient, .mode = args.bias_gradient_mode});
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
