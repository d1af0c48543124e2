// The integers among a kernel's arguments: its bounds, extents, strides and offsets. A `<=` instead of a `<`, or a
// division that rounds the wrong way, amounts to one that is off by one. A test shifts them one at a time, without
// changing the kernel.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace mantissa {
struct AttentionShape;
}

namespace mantissa::cuda::emulation {

struct AnyValue {
  template <typename T>
  operator T() const;
};

template <size_t>
using AnyOfMany = AnyValue;

template <typename T, size_t... kIndices>
consteval bool takes_values(std::index_sequence<kIndices...>) {
  return requires { T{AnyOfMany<kIndices>{}...}; };
}

// The number of fields of an aggregate.
template <typename T, size_t kCount = 16>
consteval size_t field_count() {
  static_assert(std::is_aggregate_v<T>, "the fields of a kernel's argument can be counted if it has no constructor");
  if constexpr (kCount == 0 || takes_values<T>(std::make_index_sequence<kCount>())) {
    return kCount;
  } else {
    return field_count<T, kCount - 1>();
  }
}

// References to the fields of an aggregate.
template <typename T>
auto fields_of(T& value) {
  constexpr size_t kCount = field_count<T>();
  static_assert(kCount < 16, "one case more is needed here");
  // clang-format off
  if constexpr (kCount == 0) { return std::tie(); }
  else if constexpr (kCount == 1) { auto& [a] = value; return std::tie(a); }
  else if constexpr (kCount == 2) { auto& [a, b] = value; return std::tie(a, b); }
  else if constexpr (kCount == 3) { auto& [a, b, c] = value; return std::tie(a, b, c); }
  else if constexpr (kCount == 4) { auto& [a, b, c, d] = value; return std::tie(a, b, c, d); }
  else if constexpr (kCount == 5) { auto& [a, b, c, d, e] = value; return std::tie(a, b, c, d, e); }
  else if constexpr (kCount == 6) { auto& [a, b, c, d, e, f] = value; return std::tie(a, b, c, d, e, f); }
  else if constexpr (kCount == 7) { auto& [a, b, c, d, e, f, g] = value; return std::tie(a, b, c, d, e, f, g); }
  else if constexpr (kCount == 8) { auto& [a, b, c, d, e, f, g, h] = value; return std::tie(a, b, c, d, e, f, g, h); }
  else if constexpr (kCount == 9) { auto& [a, b, c, d, e, f, g, h, i] = value;
    return std::tie(a, b, c, d, e, f, g, h, i); }
  else if constexpr (kCount == 10) { auto& [a, b, c, d, e, f, g, h, i, j] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j); }
  else if constexpr (kCount == 11) { auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k); }
  else if constexpr (kCount == 12) { auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l); }
  else if constexpr (kCount == 13) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m); }
  else if constexpr (kCount == 14) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n); }
  else if constexpr (kCount == 15) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o); }
  // clang-format on
}

// Leaves out the batch: no kernel reads it, only grids depend on it.
template <typename T>
  requires std::is_same_v<T, AttentionShape>
auto fields_of(T& e) {
  return std::tie(e.sequence_length, e.num_heads, e.num_kv_heads, e.head_dim);
}

// Calls f(integer&) for each integer of 32 or 64 bits in `value`, in order. Smaller integers are elements, not bounds.
template <typename T, typename F>
void for_each_bound(T& value, const F& f) {
  if constexpr (std::is_integral_v<T>) {
    if constexpr (sizeof(T) >= 4) f(value);
  } else if constexpr (std::is_class_v<T>) {
    std::apply([&](auto&... fields) { (for_each_bound(fields, f), ...); }, fields_of(value));
  }
}

}  // namespace mantissa::cuda::emulation
