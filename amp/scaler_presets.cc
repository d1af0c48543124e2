#include "amp/scaler_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mantissa {
namespace {

ScalerConfig pytorch() {
  ScalerConfig config;
  config.init_scale = 0x1p16f;
  config.growth_interval = 2000;
  config.min_scale = 0.0f;
  config.floor_policy = FloorPolicy::kClamp;
  return config;
}

ScalerConfig megatron() {
  ScalerConfig config;
  config.init_scale = 0x1p32f;
  config.growth_interval = 1000;
  config.hysteresis = 2;
  config.refill = HysteresisRefill::kOnGrowth;
  config.min_scale = 1.0f;
  config.floor_policy = FloorPolicy::kClamp;
  return config;
}

ScalerConfig deepspeed_before_0_17_1() {
  ScalerConfig config;
  config.init_scale = 0x1p16f;
  config.growth_interval = 1000;
  config.hysteresis = 2;
  config.refill = HysteresisRefill::kOnGrowth;
  config.min_scale = 1.0f;
  config.floor_policy = FloorPolicy::kFault;
  return config;
}

ScalerConfig deepspeed() {
  ScalerConfig config = deepspeed_before_0_17_1();
  config.growth_delay = 1;
  return config;
}

struct Preset {
  std::string_view name;
  ScalerConfig (*make)();
};
constexpr Preset kPresets[] = {{"pytorch", pytorch},
                               {"megatron", megatron},
                               {"deepspeed", deepspeed},
                               {"deepspeed_0.17.0", deepspeed_before_0_17_1}};

}  // namespace

std::vector<std::string_view> scaler_preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

ScalerConfig scaler_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.make();
  }
  throw ConfigError(
      fmt::format("[scaler_preset] expected one of {}, got '{}'", fmt::join(scaler_preset_names(), ", "), name));
}

}  // namespace mantissa
