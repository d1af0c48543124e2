// The CPU's kernels in fp64 against the scalar references, which are double as well: they may differ by the order of
// sums, and by the last bits of functions. A rounding to fp32 anywhere would show as 1e-8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/core/cpu/fp64_case.h"
#include "tests/core/kernels/norm/norm_cases.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/attention.h"
#include "tests/reference/bias.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/dropout.h"
#include "tests/reference/embedding.h"
#include "tests/reference/gelu.h"
#include "tests/reference/linear.h"
#include "tests/reference/norm.h"
#include "tests/reference/random_values.h"
#include "tests/reference/rope.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

Values operator+(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Sums of some hundred terms near 1.
void expect_close(const Tensor& found, const Values& expected, const char* what) {
  constexpr double kTolerance = 1e-13;
  const Values values = values_of(found);
  ASSERT_EQ(values.size(), expected.size()) << what;
  double largest = 1.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], kTolerance * largest) << what << ", element " << i;
  }
}

TEST(Fp64Kernels, ProductsOfAllFormsAndOddSizes) {
  device_under_test().on_each_variant([] {
    for (const reference::MatmulShape& shape : {reference::MatmulShape{1, 1, 1, false, false},
                                                {7, 19, 33, false, true},
                                                {65, 17, 130, false, false},
                                                {34, 50, 21, true, false},
                                                {5, 3, 70, true, true}}) {
      const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n),
                 k = static_cast<int64_t>(shape.k);
      const Values a = random_values(m * k, 1), b = random_values(k * n, 2), bias = random_values(n, 3);
      const Values product = reference::matmul(a, b, shape);
      GemmArgs args{.a = fp64(shape.trans_a ? Shape{k, m} : Shape{m, k}, a),
                    .b = fp64(shape.trans_b ? Shape{n, k} : Shape{k, n}, b),
                    .c = unwritten({m, n}),
                    .trans_a = shape.trans_a ? Transpose::kYes : Transpose::kNo,
                    .trans_b = shape.trans_b ? Transpose::kYes : Transpose::kNo};
      run(args);
      expect_close(args.c, product, "product");
      args.mode = GradientMode::kAccumulate;
      if (shape.trans_a) args.bias_gradient = unwritten({m});
      run(args);
      expect_close(args.c, product + product, "accumulated product");
      if (shape.trans_a) expect_close(args.bias_gradient, reference::column_sum(a, shape.m), "bias gradient");
      args.mode = GradientMode::kWrite;
      args.bias_gradient = Tensor();
      args.bias = fp64({n}, bias);
      run(args);
      const Values biased = reference::add_bias(product, bias);
      expect_close(args.c, biased, "product with bias");
      for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
        Values gelu = biased, gradient = product;
        for (double& x : gelu) x = reference::gelu(x, form);
        for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= reference::gelu_derivative(biased[i], form);
        GemmArgs fused = args;
        fused.aux = unwritten({m, n});
        fused.activation = GemmActivation::kGelu;
        fused.form = form;
        run(fused);
        expect_close(fused.aux, biased, "input of gelu");
        expect_close(fused.c, gelu, "gelu of a product");
        fused.bias = Tensor();
        fused.activation = GemmActivation::kGeluGradient;
        run(fused);
        expect_close(fused.c, gradient, "gradient of gelu's input");
      }
    }
  });
}

TEST(Fp64Kernels, ProductsDoNotDependOnThreads) {
  std::vector<std::byte> first;
  device_under_test().on_each_schedule([&] {
    const GemmArgs args{.a = fp64({70, 90}, random_values(6300, 1)),
                        .b = fp64({90, 50}, random_values(4500, 2)),
                        .c = unwritten({70, 50})};
    run(args);
    if (first.empty()) first = bytes_of(args.c);
    EXPECT_EQ(bytes_of(args.c), first);
  });
}

TEST(Fp64Kernels, Attention) {
  // sqrt(8) is no fp32 number: the scale of the scores must not be rounded.
  const std::vector<int32_t> starts{0, 0, 2, 2, 2, 2, 6, 0, 1, 1, 1, 1, 1, 1};
  for (const auto& [causal, window, documents] :
       {std::tuple{true, 0, false}, {false, 0, false}, {true, 3, false}, {true, 0, true}, {true, 2, true}}) {
    const reference::AttentionCase c{.batch = 2,
                                     .length = 7,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .dim = 8,
                                     .scale = 1.0 / std::sqrt(8.0),
                                     .causal = causal,
                                     .window = static_cast<size_t>(window),
                                     .starts = documents ? starts : std::vector<int32_t>()};
    const Values qkv = random_values(static_cast<int64_t>(c.qkv_size()), 1, -2.0, 2.0),
                 d_out = random_values(static_cast<int64_t>(c.out_size()), 2);
    const auto expected = reference::attention_forward(c, qkv);
    const AttentionShape shape{.batch = 2,
                               .sequence_length = 7,
                               .num_heads = 4,
                               .num_kv_heads = 2,
                               .head_dim = 8,
                               .scale = 1.0f / std::sqrt(8.0f),
                               .mask = causal ? Mask::kCausal : Mask::kNone,
                               .window = window};
    const AttentionForwardArgs forward{.qkv = fp64({14, 64}, qkv),
                                       .starts = documents ? make_indices(starts) : Tensor(),
                                       .out = unwritten({14, 32}),
                                       .lse = unwritten({2, 4, 7}),
                                       .shape = shape};
    run(forward);
    expect_close(forward.out, expected.out, "out");
    expect_close(forward.lse, expected.lse, "lse");
    const AttentionBackwardArgs backward{.qkv = forward.qkv,
                                         .starts = forward.starts,
                                         .out = forward.out,
                                         .lse = forward.lse,
                                         .d_out = fp64({14, 32}, d_out),
                                         .d_qkv = unwritten({14, 64}),
                                         .shape = shape};
    run(backward);
    expect_close(backward.d_qkv, reference::attention_backward(c, qkv, expected, d_out), "d_qkv");
  }
}

constexpr size_t kRows = 9, kColumns = 37;

// The operands of both norms' tests.
struct NormOperands {
  Values x = random_values(kRows * kColumns, 1, -1.0, 3.0), residual = random_values(kRows * kColumns, 2),
         dy = random_values(kRows * kColumns, 3), weight = random_values(kColumns, 4, 0.5, 1.5),
         bias = random_values(kColumns, 5);
};

constexpr float kEpsilon = 1e-5f;

enum class Summands { kOne, kTwo };

void check_norm(Norm norm, Summands summands) {
  const NormOperands o;
  const Shape shape{kRows, kColumns};
  const bool is_layer = norm == Norm::kLayer, is_sum = summands == Summands::kTwo;
  const reference::NormFormula formula{norm, static_cast<double>(kEpsilon)};
  const Values sum = is_sum ? o.x + o.residual : o.x;
  const auto expected = reference::norm_forward(formula, sum, o.weight, is_layer ? o.bias : Values());
  const auto gradients = reference::norm_backward(formula, sum, o.dy, o.weight);
  const LayerNormForwardArgs forward{.x = fp64(shape, o.x),
                                     .residual = is_sum ? fp64(shape, o.residual) : Tensor(),
                                     .sum = is_sum ? unwritten(shape) : Tensor(),
                                     .weight = fp64({kColumns}, o.weight),
                                     .bias = is_layer ? fp64({kColumns}, o.bias) : Tensor(),
                                     .y = unwritten(shape),
                                     .mean = is_layer ? unwritten({kRows}) : Tensor(),
                                     .rstd = unwritten({kRows}),
                                     .epsilon = kEpsilon};
  run_norm(norm, forward);
  if (is_sum) expect_close(forward.sum, sum, "sum");
  expect_close(forward.y, expected.y, "y");
  if (is_layer) expect_close(forward.mean, expected.mean, "mean");
  expect_close(forward.rstd, expected.rstd, "rstd");
  LayerNormBackwardArgs backward{.x = is_sum ? forward.sum : forward.x,
                                 .dy = fp64(shape, o.dy),
                                 .weight = forward.weight,
                                 .mean = forward.mean,
                                 .rstd = forward.rstd,
                                 .dx = unwritten(shape),
                                 .d_weight = unwritten({kColumns}),
                                 .d_bias = is_layer ? unwritten({kColumns}) : Tensor()};
  run_norm(norm, backward);
  expect_close(backward.dx, gradients.dx, "dx");
  backward.mode = backward.weight_mode = backward.bias_mode = GradientMode::kAccumulate;
  run_norm(norm, backward);
  expect_close(backward.dx, gradients.dx + gradients.dx, "accumulated dx");
  expect_close(backward.d_weight, gradients.d_weight + gradients.d_weight, "d_weight");
  if (is_layer) expect_close(backward.d_bias, gradients.d_bias + gradients.d_bias, "d_bias");
}

TEST(Fp64Kernels, Norms) {
  for (const Norm norm : {Norm::kLayer, Norm::kRms}) {
    for (const Summands summands : {Summands::kOne, Summands::kTwo}) check_norm(norm, summands);
  }
}

// The last head of each three: rows 2, 5 and 8.
TEST(Fp64Kernels, NormsOfSomeHeads) {
  const NormOperands o;
  const Shape shape{kRows, kColumns};
  const reference::NormFormula formula{Norm::kRms, static_cast<double>(kEpsilon)};
  const RmsNormForwardArgs forward{.x = fp64(shape, o.x),
                                   .weight = fp64({kColumns}, o.weight),
                                   .y = fp64(shape, Values(kRows * kColumns, -1.0)),
                                   .rstd = unwritten({3}),
                                   .epsilon = kEpsilon,
                                   .heads = {3, 2, 1}};
  run(forward);
  const RmsNormBackwardArgs backward{.x = forward.x,
                                     .dy = fp64(shape, o.dy),
                                     .weight = forward.weight,
                                     .rstd = forward.rstd,
                                     .dx = fp64(shape, Values(kRows * kColumns, -1.0)),
                                     .d_weight = unwritten({kColumns}),
                                     .heads = forward.heads};
  run(backward);
  const auto expected = reference::norm_forward(formula, o.x, o.weight);
  const auto gradients = reference::norm_backward(formula, o.x, o.dy, o.weight);
  Values y(kRows * kColumns, -1.0), dx = y, head_x, head_dy;
  for (const size_t row : {2u, 5u, 8u}) {
    const size_t first = row * kColumns, last = first + kColumns;
    head_x.insert(head_x.end(), o.x.begin() + first, o.x.begin() + last);
    head_dy.insert(head_dy.end(), o.dy.begin() + first, o.dy.begin() + last);
    std::copy_n(expected.y.begin() + first, kColumns, y.begin() + first);
    std::copy_n(gradients.dx.begin() + first, kColumns, dx.begin() + first);
  }
  expect_close(forward.y, y, "y of heads");
  expect_close(backward.dx, dx, "dx of heads");
  expect_close(backward.d_weight, reference::norm_backward(formula, head_x, head_dy, o.weight).d_weight,
               "d_weight of heads");
}

TEST(Fp64Kernels, PointwiseOps) {
  const Values x = random_values(120, 1, -3.0, 3.0), dy = random_values(120, 2);
  const Tensor input = fp64({10, 12}, x), gradient = fp64({10, 12}, dy), y = unwritten({10, 12});
  run(AddArgs{.a = input, .b = gradient, .y = y});
  expect_close(y, x + dy, "add");

  const reference::RopeShape shape{
      .sequence_length = 5, .row_heads = 3, .rotated_heads = 2, .head_dim = 4, .base = 1e4};
  RopeArgs rope{.x = input, .y = y, .sequence_length = 5, .row_heads = 3, .rotated_heads = 2, .head_dim = 4};
  run(rope);
  expect_close(y, reference::rope_forward(x, shape), "rope");
  std::swap(rope.x, rope.y);
  rope.rotation = Rotation::kInverse;
  rope.y = rope.x;
  run(rope);
  expect_close(rope.y, x, "rope and back");
  const std::vector<int32_t> starts{0, 0, 2, 2, 2, 0, 1, 2, 3, 3};
  run(RopeArgs{.x = input,
               .starts = make_indices(starts),
               .y = y,
               .sequence_length = 5,
               .row_heads = 3,
               .rotated_heads = 2,
               .head_dim = 4});
  expect_close(y, reference::rope_forward(x, shape, starts), "rope in documents");

  const reference::DropoutKey key{static_cast<double>(0.3f), 7, 4, 2, 9, 60};
  run(DropoutArgs{.x = input,
                  .y = y,
                  .probability = 0.3f,
                  .seed = 7,
                  .step = make_indices({4}),
                  .site = 2,
                  .first_sample = 9,
                  .elements_per_sample = 60});
  expect_close(y, reference::dropout_forward(x, key), "dropout");
}

TEST(Fp64Kernels, Embedding) {
  const std::vector<int32_t> tokens{3, 0, 5, 3, 3, 1};
  const Values table = random_values(7 * 21, 1), positions = random_values(3 * 21, 2), dy = random_values(6 * 21, 3);
  const EmbeddingForwardArgs forward{.tokens = make_indices(tokens),
                                     .token_table = fp64({7, 21}, table),
                                     .position_table = fp64({3, 21}, positions),
                                     .y = unwritten({6, 21}),
                                     .sequence_length = 3};
  run(forward);
  expect_close(forward.y, reference::embedding_forward(tokens, table, positions, 3, 21), "embedding");
  const EmbeddingBackwardArgs backward{.tokens = forward.tokens,
                                       .dy = fp64({6, 21}, dy),
                                       .d_token_table = unwritten({7, 21}),
                                       .d_position_table = unwritten({3, 21}),
                                       .sequence_length = 3};
  run(backward);
  const auto gradients = reference::embedding_backward(tokens, dy, 7, 3, 3, 21);
  expect_close(backward.d_token_table, gradients.d_token_table, "d_token_table");
  expect_close(backward.d_position_table, gradients.d_position_table, "d_position_table");

  const std::vector<int32_t> starts{0, 1, 1, 0, 0, 2};
  EmbeddingForwardArgs documents = forward;
  documents.starts = make_indices(starts);
  run(documents);
  expect_close(forward.y, reference::embedding_forward(tokens, table, positions, 3, 21, starts), "in documents");
  EmbeddingBackwardArgs documents_backward = backward;
  documents_backward.starts = documents.starts;
  run(documents_backward);
  expect_close(backward.d_position_table,
               reference::embedding_backward(tokens, dy, 7, 3, 3, 21, starts).d_position_table, "in documents");
}

TEST(Fp64Kernels, ColumnSums) {
  const Values x = random_values(6 * 21, 3);
  const ColumnSumArgs columns{.x = fp64({6, 21}, x), .out = unwritten({21})};
  run(columns);
  expect_close(columns.out, reference::column_sum(x, 21), "column sum");
}

TEST(Fp64Kernels, CrossEntropy) {
  constexpr int32_t kIgnored = -100;
  const std::vector<int32_t> targets{2, kIgnored, 20, 0, 7, 7};
  const Values logits = random_values(6 * 21, 4, -9.0, 9.0);
  for (const float softcap : {0.0f, 5.0f}) {
    Values capped = logits, slopes(logits.size(), 1.0);
    for (size_t i = 0; i < logits.size() && softcap > 0.0f; ++i) {
      slopes[i] = 1.0 - std::pow(std::tanh(logits[i] / softcap), 2.0);
      capped[i] = softcap * std::tanh(logits[i] / softcap);
    }
    const CrossEntropyForwardArgs loss{.logits = fp64({6, 21}, logits),
                                       .targets = make_indices(targets),
                                       .losses = unwritten({6}),
                                       .lse = unwritten({6}),
                                       .loss_sum = unwritten({1}),
                                       .ignore_index = kIgnored,
                                       .softcap = softcap};
    run(loss);
    const Values losses = reference::cross_entropy_forward(capped, targets, kIgnored);
    expect_close(loss.losses, losses, "losses");
    double sum = 0.0;
    for (const double one : losses) sum += one;
    expect_close(loss.loss_sum, {sum}, "loss_sum");
    run(CrossEntropyBackwardArgs{.logits = loss.logits,
                                 .targets = loss.targets,
                                 .lse = loss.lse,
                                 .scale = fp64({1}, {1.0 / 3.0}),
                                 .ignore_index = kIgnored,
                                 .softcap = softcap});
    Values d_logits = reference::cross_entropy_backward(capped, targets, kIgnored, 1.0 / 3.0);
    for (size_t i = 0; i < d_logits.size(); ++i) d_logits[i] *= slopes[i];
    expect_close(loss.logits, d_logits, "d_logits");
  }
}

TEST(Fp64Kernels, CastsToFp32RoundOnceAndOthersAreRefused) {
  const Values values{1.0 / 3.0, 1e300, -0.0, 16777217.0};
  const Tensor x = fp64({4}, values), narrow = make_unwritten(DType::kF32, {4}), back = unwritten({4});
  run(CastArgs{.src = x, .dst = narrow, .scale = 2.0f});
  EXPECT_EQ(elements_of<float>(narrow),
            (std::vector<float>{2.0f / 3.0f, std::numeric_limits<float>::infinity(), -0.0f, 33554434.0f}));
  run(CastArgs{.src = narrow, .dst = back});
  EXPECT_EQ(values_of(back)[0], static_cast<double>(2.0f / 3.0f));
  EXPECT_THROW(run(CastArgs{.src = x, .dst = make_unwritten(DType::kBF16, {4})}), ContractError);
  // The families that round have no fp64.
  EXPECT_THROW(run(HadamardArgs{.x = fp64({16, 1}, Values(16)), .y = unwritten({16, 1})}), ContractError);
}

}  // namespace
}  // namespace mantissa::kernel_test
