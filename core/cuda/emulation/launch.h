// launch() on the emulated GPU: see device/launch.h.
#pragma once

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "core/cuda/emulation/block.h"
#include "core/cuda/emulation/bounds.h"
#include "core/cuda/emulation/kernel_name.h"
#include "core/cuda/emulation/stream_queue.h"

namespace mantissa::cuda {

struct LaunchShape {
  emulation::Extent3 grid, block;
  size_t shared_bytes = 0;
};

namespace emulation {

// A stream, and the place where somebody launches on it.
struct LaunchTarget {
  LaunchTarget(StreamHandle on, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : stream(on), site{file, line} {}
  StreamHandle stream;
  Site site;
};

// Returns how many bounds there are.
template <typename Values, typename F>
size_t for_each_bound_of(Values& arguments, const F& f) {
  size_t count = 0;
  const auto counted = [&](auto& bound) { f(count++, bound); };
  std::apply([&](auto&... each) { (for_each_bound(each, counted), ...); }, arguments);
  return count;
}

// Runs the kernel on `arguments`, with the faults that are set for it.
template <typename... Parameters, typename Values>
void run_kernel(void (*kernel)(Parameters...), const LaunchShape& shape, Values arguments, const Site& site) {
  const std::string name = kernel_name<Parameters...>(site);
  const bool faulty = faults().concern(name);
  const size_t bounds = for_each_bound_of(arguments, [&](size_t index, auto& bound) {
    const std::optional<ShiftedBound>& shift = faults().shifted_bound;
    if (faulty && shift && shift->index == index && (bound != 0 || shift->by > 0)) bound += shift->by;
  });
  note_kernel({.name = name, .bounds = bounds, .shared_bytes = shape.shared_bytes});
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
  emulation::enqueue(target.stream,
                     [=, site = target.site, values = Values(static_cast<Parameters>(arguments)...)] {
                       emulation::run_kernel(kernel, shape, values, site);
                     });
}

// The block's shared memory, as the T that the launch asked for room for.
template <typename T>
T* shared_memory() {
  return reinterpret_cast<T*>(emulation::Block::current().shared_memory());
}

}  // namespace mantissa::cuda
