// launch() on the emulated GPU: see device/device.h.
#pragma once

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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
