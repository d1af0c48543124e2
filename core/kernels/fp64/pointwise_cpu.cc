// Kernels in fp64 that map each element or pair by itself: see fp64_cpu.h.
#include <functional>
#include <vector>

#include "core/kernels/fp64/fp64_cpu.h"
#include "core/tensor/philox.h"

namespace mantissa::cpu::fp64 {
namespace {

// to[i] = function(from[i]...), all fp64.
template <typename Function>
void map(const Tensor& to, const Function& function, const auto&... from) {
  each(to.numel(), [y = to.data<double>(), ... x = from.template data<double>(), &function](int64_t i) {
    y[i] = function(x[i]...);
  });
}

double as_double(double value) { return value; }
double as_double(auto value) { return static_cast<double>(to_float(value)); }

}  // namespace

void run(const FillArgs& args) {
  check_args(args);
  std::fill_n(args.dst.data<double>(), args.dst.numel(), static_cast<double>(args.value));
}

void run(const CastArgs& args) {
  check_args(args);
  const auto cast_to = [&]<typename Dst>() {
    dispatch_with_fp64(args.src.dtype(), [&, scale = static_cast<double>(args.scale)]<typename Src>() {
      const Src* const src = args.src.data<Src>();
      Dst* const dst = args.dst.data<Dst>();
      each(args.src.numel(), [&](int64_t i) { dst[i] = static_cast<Dst>(as_double(src[i]) * scale); });
    });
  };
  if (args.dst.dtype() == DType::kF64) return cast_to.operator()<double>();
  // By way of fp32 it would be rounded twice.
  MANTISSA_CHECK(args.dst.dtype() == DType::kF32, "[cast] fp64 is cast to fp64 and fp32 only, got {}",
                 args.dst.dtype());
  cast_to.operator()<float>();
}

void run(const AddArgs& args) {
  check_args(args);
  map(args.y, std::plus<>(), args.a, args.b);
}

void run(const DropoutArgs& args) {
  check_args(args);
  const double* const x = args.x.data<double>();
  double* const y = args.y.data<double>();
  const double scale = 1.0 / (1.0 - static_cast<double>(args.probability));
  const uint32_t threshold = args.threshold();
  const auto step = static_cast<uint32_t>(*args.step.data<int32_t>());
  each(args.x.numel(), [&](int64_t i) {
    const int64_t element = i % args.elements_per_sample;
    const auto sample = args.first_sample + static_cast<uint32_t>(i / args.elements_per_sample);
    const PhiloxCounter words = philox(args.seed, {static_cast<uint32_t>(element / 4), args.site, sample, step});
    y[i] = words[static_cast<size_t>(element % 4)] >= threshold ? x[i] * scale : 0.0;
  });
}

void run(const GeluForwardArgs& args) {
  check_args(args);
  map(
      args.y, [&](double x) { return gelu_of(x, args.form); }, args.x);
}

void run(const GeluBackwardArgs& args) {
  check_args(args);
  map(
      args.dx, [&](double x, double dy) { return dy * gelu_slope(x, args.form); }, args.x, args.dy);
}

void run(const SwigluForwardArgs& args) {
  const Rows half = check_args(args);
  const double* const x = args.x.data<double>();
  double* const y = args.y.data<double>();
  each(half.rows * half.columns, [&](int64_t i) {
    const double* const gate = x + i + i / half.columns * half.columns;
    y[i] = *gate * sigmoid(*gate) * gate[half.columns];
  });
}

void run(const SwigluBackwardArgs& args) {
  const Rows half = check_args(args);
  const double *const x = args.x.data<double>(), *const dy = args.dy.data<double>();
  double* const dx = args.dx.data<double>();
  each(half.rows * half.columns, [&](int64_t i) {
    const int64_t at = i + i / half.columns * half.columns;
    const double gate = x[at], up = x[at + half.columns], s = sigmoid(gate);
    dx[at + half.columns] = dy[i] * gate * s;
    dx[at] = dy[i] * up * (s + gate * s * sigmoid(-gate));
  });
}

// A NaN stays one: no comparison with it is true.
void run(const ReluSquaredForwardArgs& args) {
  check_args(args);
  const auto square = [](double x) {
    const double positive = x < 0.0 ? 0.0 : x;
    return positive * positive;
  };
  map(args.y, square, args.x);
}

void run(const ReluSquaredBackwardArgs& args) {
  check_args(args);
  map(
      args.dx, [](double x, double dy) { return dy * (x < 0.0 ? 0.0 : 2.0 * x); }, args.x, args.dy);
}

void run(const RopeArgs& args) {
  const Rows rows = check_args(args);
  const int64_t largest = check_start_values("rope", args.starts, args.sequence_length, DocumentStart::kAlsoBefore);
  const int32_t* const starts = data_or_null<int32_t>(args.starts);
  const int64_t half = args.head_dim / 2, rotated = args.rotated_heads * args.head_dim;
  const int64_t positions = args.starts.defined() ? largest : std::min(args.sequence_length, rows.rows);
  const double sign = args.rotation == Rotation::kForward ? 1.0 : -1.0;
  // By position and pair.
  std::vector<double> cosines(static_cast<size_t>(positions * half)), sines(cosines.size());
  each(positions * half, [&](int64_t i) {
    const double angle = static_cast<double>(i / half) * args.frequencies.of_pair(i % half, args.head_dim);
    cosines[static_cast<size_t>(i)] = std::cos(angle);
    sines[static_cast<size_t>(i)] = sign * std::sin(angle);
  });
  parallel_rows(rows.rows, rows.columns, [&](int64_t row) {
    const double* const x = args.x.data<double>() + row * rows.columns;
    double* const y = args.y.data<double>() + row * rows.columns;
    const int64_t position = position_in_document(starts, row, args.sequence_length);
    for (int64_t head = 0; head < rotated; head += args.head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const auto at = static_cast<size_t>(position * half + i);
        const double a = x[head + i], b = x[head + half + i];
        y[head + i] = a * cosines[at] - b * sines[at];
        y[head + half + i] = b * cosines[at] + a * sines[at];
      }
    }
    if (x != y) std::copy(x + rotated, x + rows.columns, y + rotated);
  });
}

}  // namespace mantissa::cpu::fp64
