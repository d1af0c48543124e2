#include "amp/precision_fallback.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr int kMaxDoublings = 6;

}  // namespace

void validate(const FallbackOptions& options) {
  const auto require = [](bool holds, const char* name, int64_t value) {
    if (!holds) throw ConfigError(fmt::format("[precision_fallback] {} must be positive, got {}", name, value));
  };
  if (options.overflows < 0) require(false, "overflows", options.overflows);
  require(options.window > 0, "window", options.window);
  require(options.clean_steps > 0, "clean_steps", options.clean_steps);
  if (options.overflows > options.window) {
    throw ConfigError(
        fmt::format("[precision_fallback] overflows = {}: a window of {} steps never has as many; give "
                    "window: {}, or fewer overflows",
                    options.overflows, options.window, options.overflows));
  }
}

bool PrecisionFallback::overflowed(int64_t step, const std::string& layer, int room) {
  if (!enabled()) return false;
  Layer& found = state_[layer];
  found.since = step;
  std::erase_if(found.overflows, [&](int64_t before) { return before <= step - options_.window; });
  found.overflows.push_back(step);
  return static_cast<int>(found.overflows.size()) >= options_.overflows && lift_now(step, layer, room);
}

bool PrecisionFallback::lift_now(int64_t step, const std::string& layer, int room) {
  if (room <= 0) return false;
  Layer& found = state_[layer];
  ++found.levels;
  found.since = step;
  found.overflows.clear();
  return true;
}

bool PrecisionFallback::goes_back(const Layer& layer, int64_t step) const {
  return layer.levels > 0 && step - layer.since > options_.clean_steps << std::min(layer.returns, kMaxDoublings);
}

bool PrecisionFallback::is_due(int64_t step) const {
  return std::any_of(state_.begin(), state_.end(), [&](const auto& entry) { return goes_back(entry.second, step); });
}

std::vector<std::string> PrecisionFallback::settle(int64_t step) {
  std::vector<std::string> back;
  for (auto& [name, layer] : state_) {
    if (!goes_back(layer, step)) continue;
    --layer.levels;
    ++layer.returns;
    layer.since = step - 1;
    back.push_back(name);
  }
  return back;
}

LayerLifts PrecisionFallback::lifts() const {
  LayerLifts lifts;
  for (const auto& [name, layer] : state_) {
    if (layer.levels > 0 && name != kWholeModel) lifts.emplace(name, layer.levels);
  }
  return lifts;
}

bool PrecisionFallback::leaves_fp16() const {
  const auto whole = state_.find(kWholeModel);
  return whole != state_.end() && whole->second.levels > 0;
}

}  // namespace mantissa
