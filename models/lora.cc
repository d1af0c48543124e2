#include "models/lora.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/error.h"
#include "core/ops/add.h"

namespace mantissa {
namespace {

constexpr std::string_view kDown = "lora_a", kUp = "lora_b";

bool fits(const std::string& pattern, std::string_view path) {
  return fnmatch(pattern.c_str(), std::string(path).c_str(), 0) == 0;
}

}  // namespace

bool LoraConfig::selects(std::string_view pattern, std::string_view layer, std::string_view projection) {
  const std::string glob(pattern);
  const std::string beside = std::string(layer.substr(0, layer.rfind('.') + 1)).append(projection);
  for (const std::string& path : {std::string(layer), beside}) {
    // The whole path, or its end after a dot.
    if (fits(glob, path) || fits("*." + glob, path)) return true;
  }
  return false;
}

LoraAdapters::LoraAdapters(ParameterSet& parameters, const std::string& layer, int64_t inputs,
                           const std::vector<Projection>& projections, const LoraConfig& config)
    : dropout_(config.dropout) {
  int64_t outputs = 0;
  for (const Projection& projection : projections) outputs += projection.rows;
  int64_t row = 0;
  for (const Projection& projection : projections) {
    const int64_t first_row = row;
    row += projection.rows;
    const bool is_chosen = config.rank > 0 && std::ranges::any_of(config.targets, [&](const std::string& pattern) {
                             return LoraConfig::selects(pattern, layer, projection.name);
                           });
    if (!is_chosen) continue;
    const AdapterPlace place{layer, projection.name};
    const float bound = 1.0f / std::sqrt(static_cast<float>(inputs));
    Parameter& down = parameters.add(adapter_name(place, kDown), {config.rank, inputs}, {Init::Kind::kUniform, bound});
    Parameter& up = parameters.add(adapter_name(place, kUp), {projection.rows, config.rank}, {Init::Kind::kZeros});
    adapters_.push_back(
        {.name = projection.name,
         .matrices = {
             .down = &down, .up = &up, .first_row = first_row, .outputs = outputs, .factor = config.factor()}});
  }
}

Var LoraAdapters::add_to(Tape& tape, Var y, const Var& x, int64_t samples) const {
  for (const Adapter& adapter : adapters_) {
    const Tape::LayerGuard guard(tape, adapter.name);
    const Var change = low_rank(tape, dropout(tape, x, dropout_, samples), adapter.matrices);
    y = add(tape, y, change);
  }
  return y;
}

std::optional<AdapterPlace> adapter_place(const Parameter& parameter) {
  std::string_view path = parameter.layer();
  if (!path.ends_with(kDown) && !path.ends_with(kUp)) return std::nullopt;
  path = path.substr(0, path.rfind('.'));
  const size_t dot = path.rfind('.');
  return AdapterPlace{std::string(path.substr(0, dot)), std::string(path.substr(dot + 1))};
}

std::string adapter_name(const AdapterPlace& place, std::string_view matrix) {
  return fmt::format("{}.{}.{}.weight", place.layer, place.projection, matrix);
}

void freeze_base(ParameterSet& parameters, const LoraConfig& config) {
  std::set<std::string> used, layers;
  for (int i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters[i];
    const auto place = adapter_place(parameter);
    parameter.is_trainable = place.has_value();
    if (!place) {
      const bool is_linear = parameter.shape.rank() == 2 && parameter.name.starts_with("blocks.");
      if (is_linear) layers.insert(std::string(parameter.layer()));
      continue;
    }
    for (const std::string& pattern : config.targets) {
      if (LoraConfig::selects(pattern, place->layer, place->projection)) used.insert(pattern);
    }
  }
  for (const std::string& pattern : config.targets) {
    if (used.contains(pattern)) continue;
    throw ConfigError(
        fmt::format("model.lora.targets: '{}' selects no linear layer in the blocks of this model; there are {}; parts "
                    "of them are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj",
                    pattern, fmt::join(layers, ", ")));
  }
  require<ConfigError>(!used.empty(), "model.lora.targets: it is empty; give '*' for all linear layers in the blocks");
}

}  // namespace mantissa
