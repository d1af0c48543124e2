#include "tests/core/kernels/attention/attention_case.h"

#include <cmath>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::AttentionCase;
using reference::random_values;

int64_t as_int(size_t n) { return static_cast<int64_t>(n); }

// 1 + the largest sum of |terms| of any score that the query sees. A relative rounding error of one term of a score, or
// of the maximum or lse subtracted from it, changes a probability by at most this factor.
double score_condition(const AttentionCase& c, const std::vector<double>& magnitudes, size_t b, size_t h, size_t t) {
  double largest = 0.0;
  for (size_t j = c.first(b, t); j < c.visible(t); ++j) {
    const double score = reference::attention_score(c, magnitudes, c.query(b, h, t), c.key(b, h, j));
    largest = std::max(largest, std::abs(score));  // the scale may be negative
  }
  return 1.0 + largest;
}

template <typename Body>  // body(b, h, t, condition of its scores)
void for_each_query(const AttentionCase& c, const std::vector<double>& magnitudes, const Body& body) {
  for (size_t b = 0; b < c.batch; ++b) {
    for (size_t h = 0; h < c.heads; ++h) {
      for (size_t t = 0; t < c.length; ++t) body(b, h, t, score_condition(c, magnitudes, b, h, t));
    }
  }
}

// The rounding of operands of the second products, on devices that round them.
OperandRounding probability_rounding(DType dtype) {
  return device_under_test().rounds_probabilities(dtype) ? operand_rounding(dtype) : OperandRounding{};
}

}  // namespace

AttentionRun::AttentionRun(const AttentionCase& c, DType dtype)
    : AttentionRun(c, dtype, random_values(as_int(c.qkv_size()), 1), random_values(as_int(c.out_size()), 2)) {}

AttentionRun::AttentionRun(const AttentionCase& c, DType dtype, const std::vector<double>& qkv_values,
                           const std::vector<double>& d_out_values)
    : shape(c),
      starts(c.starts.empty() ? Tensor() : make_indices(c.starts)),
      qkv(make_tensor(dtype, {as_int(c.batch * c.length), as_int(c.row())}, qkv_values)),
      d_out(make_tensor(dtype, {as_int(c.batch * c.length), as_int(c.heads * c.dim)}, d_out_values)),
      out(make_unwritten(dtype, d_out.shape())),
      lse(make_unwritten(DType::kF32, {as_int(c.batch), as_int(c.heads), as_int(c.length)})),
      d_qkv(make_unwritten(dtype, qkv.shape())) {
  kernel_test::run(forward_args());
  kernel_test::run(backward_args());
}

AttentionForwardArgs AttentionRun::forward_args() const {
  return {.qkv = qkv,
          .starts = starts,
          .out = out,
          .lse = lse,
          .shape = {.batch = as_int(shape.batch),
                    .sequence_length = as_int(shape.length),
                    .num_heads = as_int(shape.heads),
                    .num_kv_heads = as_int(shape.kv_heads),
                    .head_dim = as_int(shape.dim),
                    .scale = static_cast<float>(shape.scale),
                    .mask = shape.causal ? Mask::kCausal : Mask::kNone,
                    .window = as_int(shape.window)}};
}

AttentionBackwardArgs AttentionRun::backward_args() const {
  const AttentionForwardArgs forward = forward_args();
  return {.qkv = qkv, .starts = starts, .out = out, .lse = lse, .d_out = d_out, .d_qkv = d_qkv, .shape = forward.shape};
}

ForwardExpectation expected_forward(const AttentionCase& c, const std::vector<double>& inputs,
                                    const OperandRounding& rounding) {
  const std::vector<double> magnitudes = absolute(inputs);
  ForwardExpectation expected{.result = reference::attention_forward(c, inputs),
                              .out_magnitude = std::vector<double>(c.out_size()),
                              .out_extra = std::vector<double>(c.out_size()),
                              .lse_magnitude = std::vector<double>(c.lse_size())};
  for_each_query(c, magnitudes, [&](size_t b, size_t h, size_t t, double condition) {
    const double lse_value = expected.result.lse[c.lse(b, h, t)];
    expected.lse_magnitude[c.lse(b, h, t)] = condition + std::abs(lse_value);
    for (size_t j = c.first(b, t); j < c.visible(t); ++j) {
      const double p = std::exp(reference::attention_score(c, inputs, c.query(b, h, t), c.key(b, h, j)) - lse_value);
      for (size_t d = 0; d < c.dim; ++d) {
        const double v = magnitudes[c.value(b, h, j) + d];
        expected.out_magnitude[c.out(b, h, t) + d] += p * condition * v;
        expected.out_extra[c.out(b, h, t) + d] += rounding.error(p) * v;
      }
    }
  });
  return expected;
}

void AttentionRun::expect_forward() const {
  const auto expected = expected_forward(shape, values_of(qkv), probability_rounding(qkv.dtype()));
  const double steps = kAttentionTolerance.steps(static_cast<double>(shape.dim + shape.length));
  expect_close(out, expected.result.out, expected.out_magnitude, steps, "out", expected.out_extra);
  expect_close(lse, expected.result.lse, expected.lse_magnitude, steps, "lse");
}

void AttentionRun::expect_backward() const {
  const std::vector<double> inputs = values_of(qkv), magnitudes = absolute(inputs);
  const reference::AttentionResult<double> stored{values_of(out), values_of(lse)};
  const std::vector<double> gradient = values_of(d_out);
  const std::vector<double> expected = reference::attention_backward(shape, inputs, stored, gradient);
  const OperandRounding rounding = probability_rounding(qkv.dtype());
  std::vector<double> magnitude(shape.qkv_size()), extra(shape.qkv_size());
  const double scale = std::abs(shape.scale);
  // Rounding a head's sum costs no more than rounding each of its terms.
  const bool rounds_heads = shape.kv_heads < shape.heads && device_under_test().rounds_head_gradients();
  const double key_roundings = rounds_heads ? 2.0 : 1.0;
  for_each_query(shape, magnitudes, [&](size_t b, size_t h, size_t t, double condition) {
    const size_t q = shape.query(b, h, t), o = shape.out(b, h, t);
    const double lse_value = stored.lse[shape.lse(b, h, t)];
    double delta = 0.0;
    for (size_t d = 0; d < shape.dim; ++d) delta += std::abs(stored.out[o + d] * gradient[o + d]);
    for (size_t j = shape.first(b, t); j < shape.visible(t); ++j) {
      const size_t k = shape.key(b, h, j), v = shape.value(b, h, j);
      const double p = std::exp(reference::attention_score(shape, inputs, q, k) - lse_value);
      const double p_terms = (condition + std::abs(lse_value)) * p;
      double d_p = delta;
      for (size_t d = 0; d < shape.dim; ++d) d_p += std::abs(gradient[o + d]) * magnitudes[v + d];
      for (size_t d = 0; d < shape.dim; ++d) {
        magnitude[q + d] += scale * p_terms * d_p * magnitudes[k + d];
        magnitude[k + d] += scale * p_terms * d_p * magnitudes[q + d];
        magnitude[v + d] += p_terms * std::abs(gradient[o + d]);
        extra[q + d] += scale * rounding.error(p * d_p) * magnitudes[k + d];
        extra[k + d] += key_roundings * scale * rounding.error(p * d_p) * magnitudes[q + d];
        extra[v + d] += key_roundings * rounding.error(p) * std::abs(gradient[o + d]);
      }
    }
  });
  const size_t terms = shape.dim + shape.length * (shape.heads / shape.kv_heads);
  const double steps = kAttentionGradientTolerance.steps(static_cast<double>(terms));
  expect_close(d_qkv, expected, magnitude, steps, "d_qkv", extra);
}

}  // namespace mantissa::kernel_test
