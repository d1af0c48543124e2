// The CPU's kernels in fp64 against the scalar references, which are double as well: they may differ by the order of
// sums, and by the last bits of functions. A rounding to fp32 anywhere would show as 1e-8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/attention.h"
#include "tests/reference/bias.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/dropout.h"
#include "tests/reference/embedding.h"
#include "tests/reference/gelu.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/linear.h"
#include "tests/reference/random_values.h"
#include "tests/reference/relu_squared.h"
#include "tests/reference/rms_norm.h"
#include "tests/reference/rope.h"
#include "tests/reference/swiglu.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;
using Values = std::vector<double>;

constexpr DType kF64 = DType::kF64;

Tensor fp64(Shape shape, const Values& values) { return make_tensor(kF64, shape, values); }
Tensor unwritten(Shape shape) { return make_unwritten(kF64, shape); }

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

TEST(Fp64Kernels, Norms) {
  const double epsilon = static_cast<double>(1e-5f);
  const Shape shape{9, 37};
  const Values x = random_values(333, 1, -1.0, 3.0), residual = random_values(333, 2), dy = random_values(333, 3),
               weight = random_values(37, 4, 0.5, 1.5), bias = random_values(37, 5);
  const Values sum = x + residual;
  {
    const auto expected = reference::layer_norm_forward(sum, weight, bias, epsilon);
    const auto gradients = reference::layer_norm_backward(sum, dy, weight, epsilon);
    const LayerNormForwardArgs forward{.x = fp64(shape, x),
                                       .residual = fp64(shape, residual),
                                       .sum = unwritten(shape),
                                       .weight = fp64({37}, weight),
                                       .bias = fp64({37}, bias),
                                       .y = unwritten(shape),
                                       .mean = unwritten({9}),
                                       .rstd = unwritten({9}),
                                       .epsilon = 1e-5f};
    run(forward);
    expect_close(forward.sum, sum, "sum");
    expect_close(forward.y, expected.y, "y");
    expect_close(forward.mean, expected.mean, "mean");
    expect_close(forward.rstd, expected.rstd, "rstd");
    LayerNormBackwardArgs backward{.x = forward.sum,
                                   .dy = fp64(shape, dy),
                                   .weight = forward.weight,
                                   .mean = forward.mean,
                                   .rstd = forward.rstd,
                                   .dx = unwritten(shape),
                                   .d_weight = unwritten({37}),
                                   .d_bias = unwritten({37})};
    run(backward);
    expect_close(backward.dx, gradients.dx, "dx");
    backward.mode = backward.weight_mode = backward.bias_mode = GradientMode::kAccumulate;
    run(backward);
    expect_close(backward.dx, gradients.dx + gradients.dx, "accumulated dx");
    expect_close(backward.d_weight, gradients.d_weight + gradients.d_weight, "d_weight");
    expect_close(backward.d_bias, gradients.d_bias + gradients.d_bias, "d_bias");
  }
  const auto expected = reference::rms_norm_forward(x, weight, epsilon);
  const auto gradients = reference::rms_norm_backward(x, dy, weight, epsilon);
  const RmsNormForwardArgs forward{.x = fp64(shape, x),
                                   .weight = fp64({37}, weight),
                                   .y = unwritten(shape),
                                   .rstd = unwritten({9}),
                                   .epsilon = 1e-5f};
  run(forward);
  expect_close(forward.y, expected.y, "y of rms norm");
  const RmsNormBackwardArgs backward{.x = forward.x,
                                     .dy = fp64(shape, dy),
                                     .weight = forward.weight,
                                     .rstd = forward.rstd,
                                     .dx = unwritten(shape),
                                     .d_weight = unwritten({37})};
  run(backward);
  expect_close(backward.dx, gradients.dx, "dx of rms norm");
  expect_close(backward.d_weight, gradients.d_weight, "d_weight of rms norm");

  // The last head of each three: rows 2, 5 and 8.
  Values head_x, head_dy;
  const auto append = [](Values& to, const Values& from, size_t row) {
    to.insert(to.end(), from.begin() + row * 37, from.begin() + (row + 1) * 37);
  };
  RmsNormForwardArgs of_heads = forward;
  of_heads.y = fp64(shape, Values(333, -1.0));
  of_heads.rstd = unwritten({3});
  of_heads.heads = {3, 2, 1};
  run(of_heads);
  RmsNormBackwardArgs backward_of_heads = backward;
  backward_of_heads.rstd = of_heads.rstd;
  backward_of_heads.dx = fp64(shape, Values(333, -1.0));
  backward_of_heads.heads = of_heads.heads;
  run(backward_of_heads);
  Values y = Values(333, -1.0), dx = y;
  for (const size_t row : {2u, 5u, 8u}) {
    append(head_x, x, row);
    append(head_dy, dy, row);
    std::copy_n(expected.y.begin() + row * 37, 37, y.begin() + row * 37);
    std::copy_n(gradients.dx.begin() + row * 37, 37, dx.begin() + row * 37);
  }
  expect_close(of_heads.y, y, "y of heads");
  expect_close(backward_of_heads.dx, dx, "dx of heads");
  expect_close(backward.d_weight, reference::rms_norm_backward(head_x, head_dy, weight, epsilon).d_weight,
               "d_weight of heads");
}

TEST(Fp64Kernels, PointwiseOps) {
  const Values x = random_values(120, 1, -3.0, 3.0), dy = random_values(120, 2), half_dy = random_values(60, 3);
  const Tensor input = fp64({10, 12}, x), gradient = fp64({10, 12}, dy), y = unwritten({10, 12});
  for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
    Values value = x, slope = dy;
    for (size_t i = 0; i < x.size(); ++i) {
      value[i] = reference::gelu(x[i], form);
      slope[i] *= reference::gelu_derivative(x[i], form);
    }
    run(GeluForwardArgs{.x = input, .y = y, .form = form});
    expect_close(y, value, "gelu");
    run(GeluBackwardArgs{.x = input, .dy = gradient, .dx = y, .form = form});
    expect_close(y, slope, "gelu backward");
  }
  run(ReluSquaredForwardArgs{.x = input, .y = y});
  expect_close(y, reference::relu_squared_forward(x), "relu_squared");
  run(ReluSquaredBackwardArgs{.x = input, .dy = gradient, .dx = y});
  expect_close(y, reference::relu_squared_backward(x, dy), "relu_squared backward");
  const Tensor half = unwritten({10, 6});
  run(SwigluForwardArgs{.x = input, .y = half});
  expect_close(half, reference::swiglu_forward(x, 6), "swiglu");
  run(SwigluBackwardArgs{.x = input, .dy = fp64({10, 6}, half_dy), .dx = y});
  expect_close(y, reference::swiglu_backward(x, half_dy, 6), "swiglu backward");
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

TEST(Fp64Kernels, EmbeddingLossAndColumnSums) {
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

  constexpr int32_t kIgnored = -100;
  const std::vector<int32_t> targets{2, kIgnored, 20, 0, 7, 7};
  const Values logits = random_values(6 * 21, 4, -9.0, 9.0);
  const CrossEntropyForwardArgs loss{.logits = fp64({6, 21}, logits),
                                     .targets = make_indices(targets),
                                     .losses = unwritten({6}),
                                     .lse = unwritten({6}),
                                     .loss_sum = unwritten({1}),
                                     .ignore_index = kIgnored};
  run(loss);
  const Values losses = reference::cross_entropy_forward(logits, targets, kIgnored);
  expect_close(loss.losses, losses, "losses");
  double sum = 0.0;
  for (const double one : losses) sum += one;
  expect_close(loss.loss_sum, {sum}, "loss_sum");
  run(CrossEntropyBackwardArgs{.logits = loss.logits,
                               .targets = loss.targets,
                               .lse = loss.lse,
                               .scale = fp64({1}, {1.0 / 3.0}),
                               .ignore_index = kIgnored});
  expect_close(loss.logits, reference::cross_entropy_backward(logits, targets, kIgnored, 1.0 / 3.0), "d_logits");

  Values capped = logits, slopes;
  for (double& logit : capped) {
    slopes.push_back(1.0 - std::pow(std::tanh(logit / 5.0), 2.0));
    logit = 5.0 * std::tanh(logit / 5.0);
  }
  CrossEntropyForwardArgs capped_loss = loss;
  capped_loss.logits = fp64({6, 21}, logits);
  capped_loss.softcap = 5.0f;
  run(capped_loss);
  expect_close(loss.losses, reference::cross_entropy_forward(capped, targets, kIgnored), "losses with a softcap");
  run(CrossEntropyBackwardArgs{.logits = capped_loss.logits,
                               .targets = loss.targets,
                               .lse = loss.lse,
                               .scale = fp64({1}, {1.0 / 3.0}),
                               .ignore_index = kIgnored,
                               .softcap = 5.0f});
  Values d_capped = reference::cross_entropy_backward(capped, targets, kIgnored, 1.0 / 3.0);
  for (size_t i = 0; i < d_capped.size(); ++i) d_capped[i] *= slopes[i];
  expect_close(capped_loss.logits, d_capped, "d_logits with a softcap");

  const ColumnSumArgs columns{.x = backward.dy, .out = unwritten({21})};
  run(columns);
  expect_close(columns.out, reference::column_sum(dy, 21), "column sum");
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
