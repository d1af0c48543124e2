#include "tools/model/exchange/weights_file.h"

#include "core/base/progress_bar.h"

namespace mantissa {

CheckpointFile write_weights_file(const ModelSource& source, const std::string& folder, const std::string& name) {
  std::vector<SafetensorsEntry> entries;
  const ParameterSet& parameters = source.parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    entries.push_back({.name = parameters[i].name,
                       .dtype = std::string(safetensors_name(source.dtype(parameters[i].name))),
                       .shape = parameters[i].shape.extents()});
  }
  CheckpointFileWriter file(folder, name);
  SafetensorsWriter writer(file, std::move(entries));
  uint64_t total = 0, done = 0;
  for (const SafetensorsEntry& entry : writer.order()) total += entry.size_bytes();
  constexpr uint64_t kMegabyte = 1'000'000;
  ProgressBar progress("weights: MB", static_cast<int64_t>(total / kMegabyte));
  for (const SafetensorsEntry& entry : writer.order()) {
    std::vector<std::byte> bytes(entry.size_bytes());
    source.read(entry.name, source.dtype(entry.name), bytes);
    writer.append(entry.name, bytes);
    done += bytes.size();
    progress.reach(static_cast<int64_t>(done / kMegabyte));
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
