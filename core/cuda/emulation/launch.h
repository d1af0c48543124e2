// launch() on the emulated GPU: see device/device.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/cuda/emulation/block.h"
#include "core/cuda/emulation/stream_queue.h"

namespace mantissa {
struct AttentionShape;
}

namespace mantissa::cuda::emulation {

// The integers among a kernel's arguments: its bounds, extents, strides and offsets. A `<=` instead of a `<`, or a
// division that rounds the wrong way, acts like an argument off by 1. A test shifts them one at a time, without
// changing the kernel.

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

// A table of values has no bounds.
template <size_t kSize>
auto fields_of(std::array<double, kSize>&) {
  return std::tie();
}

// Leaves out the batch: no kernel reads it, only grids depend on it.
template <typename T>
requires std::is_same_v<T, AttentionShape>
auto fields_of(T& e) { return std::tie(e.sequence_length, e.num_heads, e.num_kv_heads, e.head_dim, e.window); }

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

namespace mantissa::cuda {

struct LaunchShape {
  emulation::Extent3 grid, block;
  size_t shared_bytes = 0;
};

namespace emulation {

// A stream, and the call site of the launch on it.
struct LaunchTarget {
  LaunchTarget(StreamHandle on, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : stream(on), site{file, line} {}
  StreamHandle stream;
  Site site;
};

// Runs the kernel on `arguments`, with the faults that are set for it.
template <typename... Parameters, typename Values>
void run_kernel(void (*kernel)(Parameters...), const LaunchShape& shape, Values arguments, const Site& site) {
  const std::string name = kernel_name<Parameters...>(site);
  const bool faulty = faults().concern(name);
  std::vector<int64_t> bounds;
  const auto visit = [&](auto& bound) {
    const std::optional<ShiftedBound>& shift = faults().shifted_bound;
    const bool shifted = faulty && shift && shift->index == bounds.size() && (bound > 1 || shift->by > 0);
    bounds.push_back(static_cast<int64_t>(bound));
    if (shifted) bound += shift->by;
  };
  std::apply([&](auto&... each) { (for_each_bound(each, visit), ...); }, arguments);
  note_kernel({.name = name, .bounds = std::move(bounds), .shared_bytes = shape.shared_bytes});
  GridRun run{.grid = shape.grid, .block = shape.block, .shared_bytes = shape.shared_bytes};
  if (faulty) {
    run.shared_bytes -= std::min(run.shared_bytes, faults().missing_shared_bytes);
    run.missing_blocks = faults().missing_last_block ? 1 : 0;
  }
  Block::run_grid(run, [&] { std::apply(kernel, arguments); });
}

}  // namespace emulation

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, const emulation::LaunchTarget& target,
            Arguments&&... arguments) {
  using Values = std::tuple<std::decay_t<Parameters>...>;
  emulation::enqueue(target.stream, [=, site = target.site, values = Values(static_cast<Parameters>(arguments)...)] {
    emulation::run_kernel(kernel, shape, values, site);
  });
}

// The dynamic shared memory of the block, as an array of T.
template <typename T>
T* shared_memory() {
  return reinterpret_cast<T*>(emulation::Block::current().shared_memory());
}

}  // namespace mantissa::cuda
