// Scaled dot-product attention in fp64, one query at a time: see fp64_cpu.h. With scores s = scale q k^T,
//   p = exp(s - lse),  out = p v;
//   dv += p dout,  ds = p (dout v - dout out),  dq = scale ds k,  dk += scale ds q.
#include <limits>
#include <vector>

#include "core/kernels/attention/decode_cpu.h"
#include "core/kernels/fp64/fp64_cpu.h"

namespace mantissa::cpu::fp64 {
namespace {

// Ops give 1 / sqrt(D) rounded to fp32. Here it is not rounded; any other scale is taken as it is.
double scale_of(const AttentionShape& shape) {
  const auto dim = static_cast<float>(shape.head_dim);
  return shape.scale == 1.0f / std::sqrt(dim) ? 1.0 / std::sqrt(static_cast<double>(dim))
                                              : static_cast<double>(shape.scale);
}

// The keys [begin, end) that the query at t sees.
struct SeenKeys {
  int64_t begin, end;
};

SeenKeys seen_keys(const auto& args, int64_t b, int64_t t) {
  const AttentionShape& shape = args.shape;
  const int64_t start = args.starts.defined() ? args.starts.template data<int32_t>()[b * shape.sequence_length + t] : 0;
  return {std::max<int64_t>(0, shape.first_key(t, start)), shape.mask == Mask::kCausal ? t + 1 : shape.sequence_length};
}

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(double factor, const double* x, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

// out (D) = softmax(scale q k^T) v over keys [first, end); key(j) and value(j) give their rows. `weights` has room for
// each key. Returns the log-sum-exp of the scores.
double attend_to(const double* query, double scale, int64_t dim, SeenKeys seen, const auto& key, const auto& value,
                 std::vector<double>& weights, double* out) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    double& score = weights[static_cast<size_t>(j)];
    score = scale * dot(query, key(j), dim);
    largest = std::max(largest, score);
  }
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    double& weight = weights[static_cast<size_t>(j)];
    sum += weight = std::exp(weight - largest);
  }
  std::fill_n(out, dim, 0.0);
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    add_scaled(weights[static_cast<size_t>(j)] / sum, value(j), dim, out);
  }
  return largest + std::log(sum);
}

// One query head of a sequence.
void attend(const AttentionForwardArgs& args, int64_t b, int64_t head) {
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim, kv_head = head / shape.group();
  const double* const qkv = args.qkv.data<double>();
  const double scale = scale_of(shape);
  std::vector<double> weights(static_cast<size_t>(shape.sequence_length));
  for (int64_t t = 0; t < shape.sequence_length; ++t) {
    const double* const query = qkv + shape.query_offset(b, head, t);
    args.lse.data<double>()[shape.lse_offset(b, head, t)] = attend_to(
        query, scale, dim, seen_keys(args, b, t), [&](int64_t j) { return qkv + shape.key_offset(b, kv_head, j); },
        [&](int64_t j) { return qkv + shape.value_offset(b, kv_head, j); }, weights,
        args.out.data<double>() + shape.out_offset(b, head, t));
  }
}

// A query head of a row that continues a text.
void attend(const AttentionDecodeArgs& args, int64_t row, int64_t head) {
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim, kv_head = head / shape.group();
  const int64_t sequence = args.sequences.data<int32_t>()[row], position = args.positions.data<int32_t>()[row];
  const double* const keys = args.cache.data<double>() + cache_offset(shape, sequence, kv_head);
  const double* const values = args.cache.data<double>() + cache_offset(shape, sequence, shape.num_kv_heads + kv_head);
  std::vector<double> weights(static_cast<size_t>(position + 1));
  attend_to(
      args.qkv.data<double>() + row * shape.qkv_row() + head * dim, scale_of(shape), dim,
      {shape.first_key(position), position + 1}, [&](int64_t j) { return keys + j * dim; },
      [&](int64_t j) { return values + j * dim; }, weights,
      args.out.data<double>() + row * shape.out_row() + head * dim);
}

// A key head of a sequence with all query heads that read it.
void attend_backward(const AttentionBackwardArgs& args, int64_t b, int64_t kv_head) {
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const double* const qkv = args.qkv.data<double>();
  double* const d_qkv = args.d_qkv.data<double>();
  const double scale = scale_of(shape);
  for (int64_t key = 0; key < shape.sequence_length; ++key) {
    std::fill_n(d_qkv + shape.key_offset(b, kv_head, key), dim, 0.0);
    std::fill_n(d_qkv + shape.value_offset(b, kv_head, key), dim, 0.0);
  }
  for (int64_t head = kv_head * shape.group(); head < (kv_head + 1) * shape.group(); ++head) {
    for (int64_t t = 0; t < shape.sequence_length; ++t) {
      const double* const query = qkv + shape.query_offset(b, head, t);
      const double* const d_out = args.d_out.data<double>() + shape.out_offset(b, head, t);
      const double lse = args.lse.data<double>()[shape.lse_offset(b, head, t)];
      const double mean = dot(d_out, args.out.data<double>() + shape.out_offset(b, head, t), dim);
      double* const d_query = d_qkv + shape.query_offset(b, head, t);
      std::fill_n(d_query, dim, 0.0);
      const auto [first, end] = seen_keys(args, b, t);
      for (int64_t key = first; key < end; ++key) {
        const int64_t key_at = shape.key_offset(b, kv_head, key), value_at = shape.value_offset(b, kv_head, key);
        const double p = std::exp(scale * dot(query, qkv + key_at, dim) - lse);
        const double d_score = scale * p * (dot(d_out, qkv + value_at, dim) - mean);
        add_scaled(p, d_out, dim, d_qkv + value_at);
        add_scaled(d_score, qkv + key_at, dim, d_query);
        add_scaled(d_score, query, dim, d_qkv + key_at);
      }
    }
  }
}

}  // namespace

void run(const AttentionForwardArgs& args) {
  check_args(args);
  check_start_values("attention_forward", args.starts, args.shape.sequence_length);
  const int64_t heads = args.shape.num_heads;
  parallel_for(args.shape.batch * heads, [&](int64_t task) { attend(args, task / heads, task % heads); });
}

void run(const AttentionAppendArgs& args) { append_to_cache(args); }

void run(const AttentionDecodeArgs& args) {
  const int64_t rows = check_args(args), heads = args.shape.num_heads;
  check_places("attention_decode", args, CachedPlace::kEveryRow);
  parallel_for(rows * heads, [&](int64_t task) { attend(args, task / heads, task % heads); });
}

void run(const AttentionBackwardArgs& args) {
  check_args(args);
  check_start_values("attention_backward", args.starts, args.shape.sequence_length);
  const int64_t heads = args.shape.num_kv_heads;
  parallel_for(args.shape.batch * heads, [&](int64_t task) { attend_backward(args, task / heads, task % heads); });
}

}  // namespace mantissa::cpu::fp64
