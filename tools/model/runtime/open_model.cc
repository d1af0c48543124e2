#include "tools/model/runtime/open_model.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "core/base/check.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "core/kernels/elementwise/args.h"
#include "tools/config/data_paths.h"
#include "tools/run/state/run_folder.h"

namespace mantissa {
namespace {

// Adds the pieces of master weights in a file as tensors, and to the parts of their parameters.
void add_masters(StoredTensors& tensors, const std::shared_ptr<const SafetensorsReader>& reader,
                 std::map<std::string, std::map<int64_t, ParameterParts::Part>>& pieces) {
  constexpr std::string_view kMaster = "/master";
  tensors.readers.push_back(reader);
  for (const SafetensorsEntry& entry : reader->entries()) {
    if (!entry.name.ends_with(kMaster)) continue;
    const std::string_view stem = std::string_view(entry.name).substr(0, entry.name.size() - kMaster.size());
    const size_t slash = stem.rfind('/');
    int64_t begin = -1;
    if (slash != std::string_view::npos) std::from_chars(stem.data() + slash + 1, stem.data() + stem.size(), begin);
    if (begin < 0) throw CheckpointError("{}: '{}' is not a piece of weights", reader->path(), entry.name);
    tensors.tensors.emplace(entry.name, StoredTensor{entry.dtype, entry.shape, reader->bytes(entry)});
    pieces[std::string(stem.substr(0, slash))].emplace(begin, ParameterParts::Part{entry.name, entry.shape});
  }
}

std::unique_ptr<ModelSource> open_run(const Checkpoint& checkpoint, RunWeights weights) {
  const ModelConfig model = read_state(checkpoint.folder, [&] {
    return parse_config(checkpoint.state.at("config").get<std::string>(), checkpoint.folder + "/" + kManifestName)
        .model;
  });
  StoredTensors tensors;
  std::map<std::string, std::map<int64_t, ParameterParts::Part>> pieces;
  if (weights == RunWeights::kMaster) {
    for (const CheckpointFile& file : checkpoint.files) {
      if (!file.name.starts_with("optimizer-")) continue;
      add_masters(tensors, std::make_shared<const SafetensorsReader>(checkpoint.folder + "/" + file.name), pieces);
    }
  }
  std::set<std::string> frozen;
  const bool has_masters = !pieces.empty();
  if (!has_masters) tensors = {};
  if (model.lora.rank > 0) {
    const auto base =
        std::make_shared<const SafetensorsReader>(checked_base(checkpoint.folder, checkpoint.state.at("run")));
    for (const SafetensorsEntry& entry : base->entries()) frozen.insert(entry.name);
    tensors.add(base);
  }
  if (!has_masters) {
    tensors.add(std::make_shared<const SafetensorsReader>(checkpoint.folder + "/" + kModelFile));
    return std::make_unique<ModelSource>(checkpoint.folder, model, std::move(tensors));
  }
  return std::make_unique<ModelSource>(checkpoint.folder, model, std::move(tensors), [&](const Parameter& parameter) {
    if (frozen.contains(parameter.name)) return own_part(parameter);
    ParameterParts parts;
    int64_t next = 0;
    for (const auto& [begin, piece] : pieces[parameter.name]) {
      if (begin != next || piece.shape.size() != 1) break;
      next += piece.shape[0];
      parts.parts.push_back(piece);
    }
    require<CheckpointError>(next == parameter.numel(), "{}: it holds {} of the {} master weights of '{}' in a row",
                             checkpoint.folder, next, parameter.numel(), parameter.name);
    return parts;
  });
}

}  // namespace

std::unique_ptr<ModelSource> open_found(const std::string& path, RunWeights weights) {
  return is_foreign_model(path) ? open_foreign_model(path) : open_run(read_manifest(path), weights);
}

std::unique_ptr<ModelSource> open_model(const std::string& path, RunWeights weights) {
  if (is_foreign_model(path)) return open_foreign_model(path);
  const std::string found = find_checkpoint_folder(path);  // where it searches, it reads every byte
  return open_run(found == path ? open_checkpoint(found) : read_manifest(found), weights);
}

nlohmann::json carried_config(const std::string& path, const std::string& name) {
  const std::string folder = carried_folder(path), file = folder + "/" + name;
  if (folder.empty() || !file_exists(file)) return nlohmann::json::object();
  nlohmann::json config = read_json_object<ConfigError>(file);
  std::erase_if(config.get_ref<nlohmann::json::object_t&>(),  // numbers that JSON has not: see JsonNode::parse()
                [](const auto& member) { return member.second == nlohmann::json::object(); });
  return config;
}

std::set<int32_t> end_ids(const std::string& path) {
  const std::string folder = carried_folder(path), file = folder + "/generation_config.json";
  const bool is_there = !folder.empty() && file_exists(file);
  const nlohmann::json json = is_there ? JsonNode::read(file) : carried_config(path);
  std::set<int32_t> ids;
  const auto add = [&ids](const JsonNode& id) {
    id.expect(id.value().is_number_integer(), "a token's id, or -1 for none");
    if (JsonNode::is_id(id.value())) ids.insert(id.id());
  };
  const auto eos = JsonNode(json, is_there ? file : folder + "/config.json").find("eos_token_id");
  if (eos && !eos->value().is_array()) add(*eos);
  for (size_t i = 0; eos && eos->value().is_array() && i < eos->array().size(); ++i) add(eos->at(i));
  return ids;
}

int64_t positions_of(const std::string& path, const ModelConfig& model) {
  if (model.position != Position::kRope) return model.context;
  const nlohmann::json own = carried_config(path).value("max_position_embeddings", nlohmann::json());
  return std::max(model.context, own.is_number_integer() ? own.get<int64_t>() : 0);
}

void load_weight(const ModelSource& source, Parameter& parameter, Backend& backend, Stream& stream) {
  const DType stored = source.dtype(parameter.name);
  std::vector<std::byte> values(static_cast<size_t>(parameter.numel() * size_bytes(stored)));
  source.read(parameter.name, stored, values);
  ++parameter.version;
  if (stored == parameter.working_dtype) return backend.upload(values.data(), parameter.weight, stream);
  const Tensor wide = backend.make_tensor(stored, parameter.shape, "loaded weight");
  backend.upload(values.data(), wide, stream);
  backend.run(CastArgs{.src = wide, .dst = parameter.weight}, stream);
}

std::string base_file_of(const std::string& checkpoint_folder) {
  std::filesystem::path folder = std::filesystem::absolute(checkpoint_folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "step-00000010/"
  return (folder.parent_path().parent_path() / kBaseFile).string();
}

std::string checked_base(const std::string& checkpoint_folder, const nlohmann::json& run_entry) {
  const std::string path = base_file_of(checkpoint_folder);
  const CheckpointFile file = read_state(checkpoint_folder, [&] {
    const nlohmann::json& base = run_entry.at(kBaseEntry);
    return CheckpointFile{kBaseFile, base.at("size_bytes"), base.at("xxh3_128")};
  });
  require<CheckpointError>(
      file_exists(path),
      "{}: it holds adapters, and the weights that they adapt are missing: expected {}, which the run "
      "wrote when it began",
      checkpoint_folder, path);
  verify_file(std::filesystem::path(path).parent_path().string(), file);
  return path;
}

}  // namespace mantissa
