#include "tools/exchange/weights_file.h"

namespace mantissa {

CheckpointFile write_weights_file(const ModelSource& source, const std::string& folder, const std::string& name) {
  std::vector<SafetensorsEntry> entries;
  const ParameterSet& parameters = source.parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    SafetensorsEntry entry{.name = parameters[i].name,
                           .dtype = std::string(safetensors_name(source.dtype(parameters[i].name))),
                           .shape = {}};
    for (int axis = 0; axis < parameters[i].shape.rank(); ++axis) entry.shape.push_back(parameters[i].shape[axis]);
    entries.push_back(std::move(entry));
  }
  CheckpointFileWriter file(folder, name);
  SafetensorsWriter writer(file, std::move(entries));
  for (const SafetensorsEntry& entry : writer.order()) {
    std::vector<std::byte> bytes(entry.size_bytes());
    source.read(entry.name, source.dtype(entry.name), bytes);
    writer.append(entry.name, bytes);
  }
  writer.finish();
  return file.close();
}

std::unique_ptr<ModelSource> open_weights_file(const std::string& path, const ModelConfig& model) {
  StoredTensors tensors;
  tensors.add(std::make_shared<const SafetensorsReader>(path));
  return std::make_unique<ModelSource>(path, model, std::move(tensors), own_parts(model));
}

}  // namespace mantissa
