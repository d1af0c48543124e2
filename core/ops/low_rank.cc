#include "core/ops/low_rank.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/args.h"
#include "core/ops/linear.h"

namespace mantissa {
namespace {

// An adapter in one pass. It holds no weight: backward functions may keep it.
struct AdapterPass {
  LowRankMatrices adapter;
  DType dtype;  // compute dtype
  Fp32Products products;

  bool is_whole() const { return adapter.up->shape[0] == adapter.outputs; }

  // B (N, rank) with zeros in the rows of other projections, so that kernels need no strides.
  Tensor up_matrix(Tape& tape) const {
    const Tensor own = tape.weight(*adapter.up, dtype);
    if (is_whole()) return own;
    const Tensor whole = tape.allocate(dtype, {adapter.outputs, own.dim(1)}, "adapter");
    tape.backend().run(FillArgs{.dst = whole}, tape.stream());
    tape.backend().copy(own, whole.rows(adapter.first_row, own.dim(0)), tape.stream());
    return whole;
  }
  void multiply(Tape& tape, const Parameter& weight, Product product, const GemmArgs& args) const {
    multiply_shown(tape, {weight, product}, args, products);
  }
  void scale(Tape& tape, const Tensor& tensor) const {
    if (adapter.factor == 1.0f) return;
    tape.backend().run(CastArgs{.src = tensor, .dst = tensor, .scale = adapter.factor}, tape.stream());
  }
  // dB = dy^T h, of the rows that B has.
  void up_gradient(Tape& tape, const Tensor& dy, const Tensor& h) const {
    const GradientTarget target = tape.gradient_target(*adapter.up);
    GemmArgs args{.a = dy, .b = h, .c = target.tensor, .trans_a = Transpose::kYes, .mode = target.mode};
    if (is_whole()) return multiply(tape, *adapter.up, Product::kWeightGradient, args);
    args.c = tape.allocate(target.tensor.dtype(), {adapter.outputs, h.dim(1)}, "gradient");
    args.mode = GradientMode::kWrite;
    multiply(tape, *adapter.up, Product::kWeightGradient, args);
    const Tensor own = args.c.rows(adapter.first_row, adapter.up->shape[0]);
    if (target.mode == GradientMode::kWrite) return tape.backend().copy(own, target.tensor, tape.stream());
    tape.backend().run(AddArgs{.a = target.tensor, .b = own, .y = target.tensor}, tape.stream());
  }
  // Takes dy (R, N) and h (R, rank), both of the compute dtype.
  void backward(Tape& tape, const Var& source, DType x_dtype, const Tensor& x, const Tensor& h,
                const Tensor& dy) const {
    const Tensor dh = tape.allocate(dtype, h.shape(), "gradient");
    multiply(tape, *adapter.up, Product::kInputGradient, {.a = dy, .b = up_matrix(tape), .c = dh});
    up_gradient(tape, dy, h);
    scale(tape, dh);
    if (source.slot >= 0) {
      Tensor dx = tape.allocate(x_dtype == DType::kF32 ? DType::kF32 : dtype, x.shape(), "gradient");
      multiply(tape, *adapter.down, Product::kInputGradient,
               {.a = dh, .b = tape.weight(*adapter.down, dtype), .c = dx});
      tape.give_gradient(source, std::move(dx));
    }
    const GradientTarget target = tape.gradient_target(*adapter.down);
    multiply(tape, *adapter.down, Product::kWeightGradient,
             {.a = dh, .b = x, .c = target.tensor, .trans_a = Transpose::kYes, .mode = target.mode});
  }
};

}  // namespace

Var low_rank(Tape& tape, Var x, const LowRankMatrices& adapter) {
  const Shape &down = adapter.down->shape, &up = adapter.up->shape;
  MANTISSA_CHECK(x.value.shape().rank() == 2 && down.rank() == 2 && up.rank() == 2 && x.value.dim(1) == down[1] &&
                     up[1] == down[0],
                 "[low_rank] x must be (R, K), '{}' (rank, K) and '{}' (n, rank), got {}, {} and {}",
                 adapter.down->name, adapter.up->name, x.value.shape(), down, up);
  MANTISSA_CHECK(adapter.first_row >= 0 && adapter.first_row + up[0] <= adapter.outputs,
                 "[low_rank] rows {} to {} of '{}' are not among {} outputs", adapter.first_row,
                 adapter.first_row + up[0], adapter.up->name, adapter.outputs);
  const DType dtype = linear_dtype(tape, x.value.dtype(), *adapter.down);
  const AdapterPass pass{.adapter = adapter,
                         .dtype = dtype,
                         .products = dtype == DType::kF32 ? tape.fp32_products() : Fp32Products::kFp32};
  const DType x_dtype = x.value.dtype();
  const Var source{{}, x.slot};
  const Tensor input = tape.cast(x.value, dtype);
  const SavedValue saved(x, input);
  x.value = Tensor();
  const int64_t rows = input.dim(0);
  const Tensor h = tape.allocate(dtype, {rows, down[0]}), y = tape.allocate(dtype, {rows, adapter.outputs});
  pass.multiply(tape, *adapter.down, Product::kForward,
                {.a = input, .b = tape.weight(*adapter.down, dtype), .c = h, .trans_b = Transpose::kYes});
  pass.scale(tape, h);
  pass.multiply(tape, *adapter.up, Product::kForward,
                {.a = h, .b = pass.up_matrix(tape), .c = y, .trans_b = Transpose::kYes});
  return tape.record(Op::kLinear, y, {source}, {adapter.down, adapter.up},
                     [pass, source, x_dtype, saved, h](Tape& t, const Tensor& dy) {
                       pass.backward(t, source, x_dtype, saved.get(t), h, dy);
                     });
}

}  // namespace mantissa
