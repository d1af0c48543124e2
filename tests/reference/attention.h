// Scalar reference of scaled dot-product attention on packed queries, keys and values, for double and
// std::complex<double>.
//
// qkv (B*T, (H + 2*KV) * D): query heads, key heads, value heads; out (B*T, H*D); lse (B, H, T).
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mantissa::reference {

struct AttentionCase {
  size_t batch, length, heads, kv_heads, dim;
  double scale;
  bool causal;
  size_t window = 0;              // keys that a query sees, itself included; 0: all
  std::vector<int32_t> starts{};  // by sequence and position, of the position's document; empty: one document

  size_t row() const { return (heads + 2 * kv_heads) * dim; }
  size_t qkv_size() const { return batch * length * row(); }
  size_t out_size() const { return batch * length * heads * dim; }
  size_t lse_size() const { return batch * heads * length; }
  size_t query(size_t b, size_t h, size_t t) const { return (b * length + t) * row() + h * dim; }
  size_t key(size_t b, size_t h, size_t t) const { return query(b, heads + h / (heads / kv_heads), t); }
  size_t value(size_t b, size_t h, size_t t) const { return query(b, heads + kv_heads + h / (heads / kv_heads), t); }
  size_t out(size_t b, size_t h, size_t t) const { return ((b * length + t) * heads + h) * dim; }
  size_t lse(size_t b, size_t h, size_t t) const { return (b * heads + h) * length + t; }
  // Keys [first(), visible()) are seen.
  size_t visible(size_t t) const { return causal ? t + 1 : length; }
  size_t first(size_t b, size_t t) const {
    const size_t start = starts.empty() ? 0 : static_cast<size_t>(starts[b * length + t]);
    return window == 0 || t < window ? start : std::max(start, t - window + 1);
  }
};

template <typename T>
struct AttentionResult {
  std::vector<T> out, lse;
};

template <typename T>
T attention_score(const AttentionCase& c, const std::vector<T>& qkv, size_t query, size_t key) {
  T sum = 0;
  for (size_t d = 0; d < c.dim; ++d) sum += qkv[query + d] * qkv[key + d];
  return c.scale * sum;
}

template <typename T>
AttentionResult<T> attention_forward(const AttentionCase& c, const std::vector<T>& qkv) {
  AttentionResult<T> result{std::vector<T>(c.out_size()), std::vector<T>(c.lse_size())};
  std::vector<T> scores(c.length);
  for (size_t b = 0; b < c.batch; ++b) {
    for (size_t h = 0; h < c.heads; ++h) {
      for (size_t t = 0; t < c.length; ++t) {
        double largest = -std::numeric_limits<double>::infinity();  // a constant that cancels, so it has no derivative
        for (size_t j = c.first(b, t); j < c.visible(t); ++j) {
          scores[j] = attention_score(c, qkv, c.query(b, h, t), c.key(b, h, j));
          largest = std::max(largest, std::real(scores[j]));
        }
        T total = 0;
        for (size_t j = c.first(b, t); j < c.visible(t); ++j) total += std::exp(scores[j] - largest);
        for (size_t j = c.first(b, t); j < c.visible(t); ++j) {
          const T p = std::exp(scores[j] - largest) / total;
          for (size_t d = 0; d < c.dim; ++d) result.out[c.out(b, h, t) + d] += p * qkv[c.value(b, h, j) + d];
        }
        result.lse[c.lse(b, h, t)] = largest + std::log(total);
      }
    }
  }
  return result;
}

// The gradient of qkv from the stored results of the forward pass.
template <typename T>
std::vector<T> attention_backward(const AttentionCase& c, const std::vector<T>& qkv, const AttentionResult<T>& forward,
                                  const std::vector<T>& d_out) {
  std::vector<T> d_qkv(c.qkv_size());
  for (size_t b = 0; b < c.batch; ++b) {
    for (size_t h = 0; h < c.heads; ++h) {
      for (size_t t = 0; t < c.length; ++t) {
        const size_t o = c.out(b, h, t), q = c.query(b, h, t);
        T delta = 0;
        for (size_t d = 0; d < c.dim; ++d) delta += forward.out[o + d] * d_out[o + d];
        for (size_t j = c.first(b, t); j < c.visible(t); ++j) {
          const size_t k = c.key(b, h, j), v = c.value(b, h, j);
          const T p = std::exp(attention_score(c, qkv, q, k) - forward.lse[c.lse(b, h, t)]);
          T d_p = 0;
          for (size_t d = 0; d < c.dim; ++d) d_p += d_out[o + d] * qkv[v + d];
          const T d_score = c.scale * p * (d_p - delta);
          for (size_t d = 0; d < c.dim; ++d) {
            d_qkv[q + d] += d_score * qkv[k + d];
            d_qkv[k + d] += d_score * qkv[q + d];
            d_qkv[v + d] += p * d_out[o + d];
          }
        }
      }
    }
  }
  return d_qkv;
}

}  // namespace mantissa::reference
