#include "core/ops/linear_cross_entropy.h"

#include <algorithm>

#include "core/kernels/check_args.h"
#include "core/kernels/loss/args.h"
#include "core/ops/fp32_product.h"
#include "core/ops/show_product.h"

namespace mantissa {
namespace {

// Rows [begin, begin + count) of a matrix.
Tensor rows_of(const Tensor& matrix, int64_t begin, int64_t count) {
  const int64_t columns = matrix.shape().last();
  return matrix.slice(begin * columns, count * columns).view({count, columns});
}

struct Operands {
  Tensor input, kernel, targets;  // (R, K), (V, K), (R)
  OperandCache* kernel_cache;
  Fp32Products products;
  Tensor logits;       // (chunk rows, V)
  Tensor losses, lse;  // (R)
  Tensor d_input;      // (R, K); undefined in evaluation
};

// Computes one chunk's losses and, in training, its gradients.
void run_chunk(Tape& tape, const Operands& all, int64_t begin, int64_t count, const Tensor& loss_sum,
               Parameter& weight) {
  Backend& backend = tape.backend();
  Stream& stream = tape.stream();
  const Tensor input = rows_of(all.input, begin, count), logits = rows_of(all.logits, 0, count);
  const Tensor targets = all.targets.slice(begin, count), lse = all.lse.slice(begin, count);
  multiply(tape, {.a = input, .b = all.kernel, .c = logits, .trans_b = Transpose::kYes, .b_cache = all.kernel_cache},
           all.products);
  show_unrounded(tape, weight, Product::kForward, input, all.kernel, logits, all.products, begin == 0);
  backend.run(CrossEntropyForwardArgs{.logits = logits,
                                 .targets = targets,
                                 .losses = all.losses.slice(begin, count),
                                 .lse = lse,
                                 .loss_sum = loss_sum,
                                 .ignore_index = kIgnoreIndex},
                                stream);
  if (!tape.training()) return;
  backend.run(CrossEntropyBackwardArgs{.logits = logits,
                                  .targets = targets,
                                  .lse = lse,
                                  .scale = tape.options().loss_gradient,
                                  .ignore_index = kIgnoreIndex},
                                 stream);
  if (all.d_input.defined()) {
    const Tensor d_input = rows_of(all.d_input, begin, count);
    multiply(tape, {.a = logits, .b = all.kernel, .c = d_input, .b_cache = all.kernel_cache}, all.products);
    show_unrounded(tape, weight, Product::kInputGradient, logits, all.kernel, d_input, all.products, begin == 0);
  }
  const GradientTarget d_weight = tape.gradient_target(weight);
  multiply(tape, {.a = logits, .b = input, .c = d_weight.tensor, .trans_a = Transpose::kYes, .mode = d_weight.mode},
           all.products);
  show_unrounded(tape, weight, Product::kWeightGradient, logits, input, d_weight.tensor, all.products, begin == 0);
}

}  // namespace

LossOutput linear_cross_entropy(Tape& tape, const Var& x, Parameter& weight, const Tensor& targets,
                                int64_t chunk_rows) {
  MANTISSA_CHECK(x.value.shape().rank() == 2 && weight.shape.rank() == 2 && x.value.dim(1) == weight.shape[1],
                 "[linear_cross_entropy] '{}' has shape {} (V, K); x must have shape (R, K), got {}", weight.name,
                 weight.shape, x.value.shape());
  MANTISSA_CHECK(!tape.linear_formats().any(),
                 "[linear_cross_entropy] '{}' rounds its operands: linear and cross_entropy must be ops of their own",
                 weight.name);
  MANTISSA_CHECK(chunk_rows > 0, "[linear_cross_entropy] a chunk must have rows, got {}", chunk_rows);
  MANTISSA_CHECK(!tape.training() || tape.options().loss_gradient.defined(),
                 "[linear_cross_entropy] the tape was made without a loss gradient");
  MANTISSA_CHECK(
      tape.is_recording() || !tape.training(),
      "[linear_cross_entropy] writes gradients as it goes: it must not be part of a segment that is run twice");
  const int64_t rows = x.value.dim(0), vocab = weight.shape[0];
  const DType x_dtype = x.value.dtype();
  const DType dtype = tape.compute_dtype(Op::kLinear, x_dtype, widest(x_dtype, weight.working_dtype));
  chunk_rows = std::min(chunk_rows, rows);
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;

  Operands all{.input = tape.cast(x.value, dtype),
               .kernel = tape.weight(weight, dtype),
               .targets = targets,
               .kernel_cache = tape.operand_cache(weight, dtype),
               .products = tape.fp32_products(),
               .logits = {},
               .losses = tape.allocate(DType::kF32, {rows}),
               .lse = tape.allocate(DType::kF32, {rows}),
               .d_input = {}};
  if (tape.training() && x.slot >= 0) {
    all.d_input = tape.allocate(x_dtype == DType::kF32 ? DType::kF32 : dtype, {rows, weight.shape[1]}, "gradient");
  }
  const Tensor sums = tape.allocate(DType::kF32, {chunks, 1});
  Tensor sum = tape.allocate(DType::kF32, {1});
  all.logits = tape.allocate(dtype, {chunk_rows, vocab}, "logits of a chunk");
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * chunk_rows;
    run_chunk(tape, all, begin, std::min(chunk_rows, rows - begin), sums.slice(chunk, 1), weight);
  }
  tape.backend().run(ColumnSumArgs{.x = sums, .out = sum}, tape.stream());

  const Var source{{}, x.slot};
  Var recorded = tape.record(Op::kCrossEntropy, std::move(sum), {source}, {&weight},
                             [source, d_input = all.d_input](Tape& t, Tensor) mutable {
                               if (d_input.defined()) t.give_gradient(source, std::move(d_input));
                             });
  return {std::move(recorded), all.losses};
}

}  // namespace mantissa
