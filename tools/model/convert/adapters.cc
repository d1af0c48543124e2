#include "tools/model/convert/adapters.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/check.h"
#include "core/base/thread_team.h"
#include "core/io/checkpoint_store.h"
#include "core/io/files.h"
#include "models/layers.h"
#include "models/model.h"

namespace mantissa {
namespace {

// An adapter of a layer, with its place in the rows of the layer's weight.
struct Adapter {
  const Parameter *down, *up;  // A (rank, K) and B (rows, rank)
  int64_t first_row;

  int64_t rows() const { return up->shape[0]; }
};

std::vector<Adapter> adapters_of(const ModelSource& source, const Parameter& weight) {
  std::vector<Adapter> found;
  const std::string layer(weight.layer());
  if (weight.shape.rank() != 2 || !layer.starts_with("blocks.")) return found;
  int64_t row = 0;
  for (const Projection& projection : projections_of(source.model(), layer)) {
    const AdapterPlace place{layer, projection.name};
    const Parameter* const down = source.parameters().find(adapter_name(place, "lora_a"));
    if (down != nullptr) found.push_back({down, source.parameters().find(adapter_name(place, "lora_b")), row});
    row += projection.rows;
  }
  return found;
}

// A module of PEFT: the adapters of one matrix of the family.
struct Module {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  int64_t rows = 0, columns = 0;
  std::vector<Adapter> adapters{};
  int64_t first_row = 0;  // in our weight

  std::string last_name() const { return name.substr(name.rfind('.') + 1); }
  int64_t rank() const { return std::ssize(adapters) * adapters.front().down->shape[0]; }
};

// All linear layers in the blocks, also those without adapters.
std::vector<Module> modules_of(const ModelSource& source, const ModelFamily& family) {
  std::vector<Module> modules;
  for (int i = 0; i < source.parameters().size(); ++i) {
    const Parameter& weight = source.parameters()[i];
    if (adapter_place(weight) || weight.shape.rank() != 2 || !weight.name.starts_with("blocks.")) continue;
    const std::vector<Adapter> adapters = adapters_of(source, weight);
    int64_t row = 0;
    for (const ParameterParts::Part& part : hf_parts(family, source.model(), weight).parts) {
      Module module{.name = part.name.substr(0, part.name.rfind('.')),
                    .rows = part.shape[0] * part.shape[1] / weight.shape[1],
                    .columns = weight.shape[1]};
      module.first_row = row;
      for (const Adapter& adapter : adapters) {
        if (adapter.first_row >= row && adapter.first_row < row + module.rows) module.adapters.push_back(adapter);
      }
      row += module.rows;
      modules.push_back(std::move(module));
    }
  }
  return modules;
}

// A of all adapters, one below the other; B beside each other, each in the rows of its projection.
struct Matrices {
  std::vector<float> down, up;
};

Matrices matrices_of(const ModelSource& source, const Module& module) {
  Matrices matrices;
  const int64_t rank = module.rank();
  matrices.up.assign(static_cast<size_t>(module.rows * rank), 0.0f);
  int64_t column = 0;
  for (const Adapter& adapter : module.adapters) {
    const std::vector<float> down = source.values(adapter.down->name), up = source.values(adapter.up->name);
    matrices.down.insert(matrices.down.end(), down.begin(), down.end());
    const int64_t own = adapter.down->shape[0];
    for (int64_t row = 0; row < adapter.rows(); ++row) {
      std::copy_n(up.begin() + row * own, own,
                  matrices.up.begin() + (adapter.first_row - module.first_row + row) * rank + column);
    }
    column += own;
  }
  return matrices;
}

nlohmann::json number(double value) {
  return value == std::floor(value) ? nlohmann::json(static_cast<int64_t>(value)) : nlohmann::json(value);
}

nlohmann::json peft_config(const ModelSource& source, const ModelFamily& family, const std::vector<Module>& modules,
                           const std::string& base) {
  const LoraConfig& lora = source.model().lora;
  std::set<std::string> everywhere, targets;
  for (const Module& module : modules) everywhere.insert(module.last_name());
  for (const Module& module : modules) {
    if (module.adapters.empty()) everywhere.erase(module.last_name());
  }
  nlohmann::json ranks = nlohmann::json::object(), alphas = nlohmann::json::object();
  for (const Module& module : modules) {
    if (module.adapters.empty()) continue;
    targets.insert(everywhere.contains(module.last_name()) ? module.last_name() : module.name);
    if (module.rank() == lora.rank) continue;
    ranks[module.name] = module.rank();
    alphas[module.name] = number(static_cast<double>(lora.alpha) * static_cast<double>(module.adapters.size()));
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.empty() ? nlohmann::json() : nlohmann::json(base)},
          {"inference_mode", true},
          {"r", lora.rank},
          {"lora_alpha", number(static_cast<double>(lora.alpha))},
          {"lora_dropout", lora.dropout},
          {"target_modules", targets},
          {"rank_pattern", ranks},
          {"alpha_pattern", alphas},
          {"bias", "none"},
          {"fan_in_fan_out", family.style == FamilyStyle::kGpt2},
          {"init_lora_weights", true},
          {"use_rslora", false},
          {"use_dora", false},
          {"modules_to_save", nullptr}};
}

}  // namespace

bool has_adapters(const ModelSource& source, const Parameter& parameter) {
  return !adapters_of(source, parameter).empty();
}

std::vector<float> merged_values(const ModelSource& source, const Parameter& parameter) {
  std::vector<float> values = source.values(parameter.name);
  const float factor = source.model().lora.factor();
  for (const Adapter& adapter : adapters_of(source, parameter)) {
    const std::vector<float> down = source.values(adapter.down->name), up = source.values(adapter.up->name);
    const int64_t rank = adapter.down->shape[0], columns = adapter.down->shape[1];
    parallel_for(adapter.rows(), [&](int64_t row) {
      std::vector<float> change(static_cast<size_t>(columns));
      for (int64_t r = 0; r < rank; ++r) {
        const float b = up[static_cast<size_t>(row * rank + r)];
        const float* const a = down.data() + r * columns;
        for (int64_t k = 0; k < columns; ++k) change[static_cast<size_t>(k)] += b * a[k];
      }
      float* const weight = values.data() + (adapter.first_row + row) * columns;
      for (int64_t k = 0; k < columns; ++k) weight[k] += factor * change[static_cast<size_t>(k)];
    });
  }
  return values;
}

void write_peft_adapters(const ModelSource& source, const ModelFamily& family, const PeftRequest& request) {
  require<ConfigError>(source.model().lora.rank > 0, "--format peft: {} has no adapters: model.lora.rank was 0",
                       source.path());
  const std::vector<Module> modules = modules_of(source, family);
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::pair<const Module*, bool>> made;  // by name: whether it is A
  for (const Module& module : modules) {
    if (module.adapters.empty()) continue;
    for (const bool is_down : {true, false}) {
      const std::string name = fmt::format("base_model.model.{}.lora_{}.weight", module.name, is_down ? "A" : "B");
      made[name] = {&module, is_down};
      entries.push_back(
          {.name = name,
           .dtype = std::string(safetensors_name(request.dtype)),
           .shape = is_down ? std::vector{module.rank(), module.columns} : std::vector{module.rows, module.rank()}});
    }
  }
  CheckpointFileWriter file(request.folder, "adapter_model.safetensors");
  SafetensorsWriter writer(file, std::move(entries));
  for (const SafetensorsEntry& entry : writer.order()) {
    const auto& [module, is_down] = made.at(entry.name);
    const Matrices matrices = matrices_of(source, *module);
    writer.append(entry.name, converted({std::string(safetensors_name(DType::kF32)), entry.shape,
                                         std::as_bytes(std::span(is_down ? matrices.down : matrices.up))},
                                        request.dtype));
  }
  writer.finish();
  file.close();
  const nlohmann::json config = peft_config(source, family, modules, request.base);
  write_file<CheckpointError>(request.folder + "/adapter_config.json", config.dump(2) + "\n");
}

}  // namespace mantissa
