#include "tools/train/run_model.h"

#include <charconv>
#include <filesystem>
#include <set>

#include "core/base/log.h"
#include "core/kernels/elementwise/args.h"
#include "tools/config/initial_model.h"
#include "tools/exchange/carried_files.h"
#include "tools/exchange/weights_file.h"
#include "tools/guard/resume_choice.h"
#include "tools/train/checkpoint.h"

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
    if (begin < 0) throw CheckpointError(fmt::format("{}: '{}' is not a piece of weights", reader->path(), entry.name));
    tensors.tensors.emplace(entry.name, StoredTensor{entry.dtype, entry.shape, reader->bytes(entry)});
    pieces[std::string(stem.substr(0, slash))].emplace(begin, ParameterParts::Part{entry.name, entry.shape});
  }
}

ModelConfig without_adapters(ModelConfig model) {
  model.lora = {};
  return model;
}

// The file of frozen weights that the checkpoint was trained with. CheckpointError for another one, or none.
std::string checked_base(const std::string& checkpoint_folder, const nlohmann::json& run_entry) {
  const std::string path = base_file_of(checkpoint_folder);
  const CheckpointFile file = read_state(checkpoint_folder, [&] {
    const nlohmann::json& base = run_entry.at(kBaseEntry);
    return CheckpointFile{kBaseFile, base.at("size_bytes"), base.at("xxh3_128")};
  });
  std::error_code error;  // then it is not there
  if (!std::filesystem::exists(path, error)) {
    throw CheckpointError(
        fmt::format("{}: it holds adapters, and the weights that they adapt are missing: expected {}, which the run "
                    "wrote when it began",
                    checkpoint_folder, path));
  }
  verify_file(std::filesystem::path(path).parent_path().string(), file);
  return path;
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
  auto parts = own_parts(model);
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
    return std::make_unique<ModelSource>(checkpoint.folder, model, std::move(tensors), std::move(parts));
  }
  for (auto& [parameter, part] : parts) {
    if (frozen.contains(parameter)) continue;
    const int64_t expected = part.numel();
    part.parts.clear();
    int64_t next = 0;
    for (const auto& [begin, piece] : pieces[parameter]) {
      if (begin != next || piece.shape.size() != 1) break;
      next += piece.shape[0];
      part.parts.push_back(piece);
    }
    if (next != expected) {
      throw CheckpointError(fmt::format("{}: it holds {} of the {} master weights of '{}' in a row", checkpoint.folder,
                                        next, expected, parameter));
    }
  }
  return std::make_unique<ModelSource>(checkpoint.folder, model, std::move(tensors), std::move(parts));
}

// Loads what this rank needs of each parameter.
void load_shard(const ModelSource& source, Session& session) {
  ShardedOptimizer& optimizer = session.sharded.optimizer;
  const ParameterSet& parameters = session.runtime.parameters;
  for (int index = 0; index < parameters.size(); ++index) {
    const Parameter& parameter = parameters[index];
    if (!optimizer.needs(index, 0, parameter.numel())) continue;
    const auto count = static_cast<size_t>(parameter.numel());
    const bool is_new = source.parameters().find(parameter.name) == nullptr;  // of an adapter
    if (parameter.working_dtype == DType::kF64 && !is_new) {
      std::vector<double> values(count), none(count);
      source.read(parameter.name, DType::kF64, std::as_writable_bytes(std::span(values)));
      optimizer.load({.parameter = index, .doubles = {.weights = values, .m = none, .v = none}});
      continue;
    }
    std::vector<float> values(count), zeros(count);
    if (is_new) {
      initial_values(parameter, session.config.train.seed, 0, parameter.numel(), values.data());
    } else {
      source.read(parameter.name, DType::kF32, std::as_writable_bytes(std::span(values)));
    }
    const MomentValues none{.values = zeros};
    optimizer.load({.parameter = index, .weights = values, .m = none, .v = none});
  }
}

// `path`: of a model of another program, or of a checkpoint whose bytes were read before.
std::unique_ptr<ModelSource> open_found(const std::string& path, RunWeights weights) {
  return is_foreign_model(path) ? open_foreign_model(path) : open_run(read_manifest(path), weights);
}

}  // namespace

std::unique_ptr<ModelSource> open_model(const std::string& path, RunWeights weights) {
  if (is_foreign_model(path)) return open_foreign_model(path);
  const std::string found = find_checkpoint_folder(path);  // where it searches, it reads every byte
  return open_run(found == path ? open_checkpoint(found) : read_manifest(found), weights);
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

std::optional<CheckpointFile> provide_base(const Config& run, const std::optional<ResumePoint>& checkpoint,
                                           const std::string& weights, Communicator& communicator) {
  if (run.model.lora.rank == 0) return std::nullopt;
  namespace fs = std::filesystem;
  const fs::path own = fs::absolute(run.train.run_dir) / kBaseFile, partial = own.string() + ".partial";
  CheckpointFile file;
  run_on_all<CheckpointError>(communicator, "", [&] {
    if (communicator.rank() != 0) return;
    std::unique_ptr<ModelSource> source;
    if (!checkpoint) {
      source = open_found(weights, RunWeights::kMaster);
    } else if (const fs::path theirs = checked_base(checkpoint->folder, checkpoint->run);
               !fs::exists(own) || !fs::equivalent(theirs, own)) {
      source = open_weights_file(theirs.string(), without_adapters(run.model));
    }
    if (!source) {
      const nlohmann::json& base = checkpoint->run.at(kBaseEntry);
      file = {.name = kBaseFile, .size_bytes = base.at("size_bytes"), .xxh3_128 = base.at("xxh3_128")};
      return;
    }
    try {
      file = write_weights_file(*source, run.train.run_dir, partial.filename().string());
      fs::rename(partial, own);
    } catch (...) {
      std::error_code ignored;
      fs::remove(partial, ignored);
      throw;
    }
  });
  file.name = kBaseFile;
  return file;
}

void load_frozen_weights(Session& session, const std::string& path) {
  ParameterSet& parameters = session.runtime.parameters;
  if (path.empty() || parameters.trainable_numel() == parameters.numel()) return;
  run_on_all<CheckpointError>(session.communicator, "frozen weights: ", [&] {
    const bool is_base = !is_foreign_model(path) && !std::filesystem::is_directory(path);
    const auto source = is_base ? open_weights_file(path, without_adapters(session.config.model))
                                : open_found(path, RunWeights::kMaster);
    for (int index = 0; index < parameters.size(); ++index) {
      if (parameters[index].is_trainable) continue;
      load_weight(*source, parameters[index], *session.runtime.backend, *session.runtime.stream);
    }
    session.runtime.stream->synchronize();  // it reads the values
  });
}

std::string find_initial_weights(const Config& run, Communicator& communicator) {
  const std::string& path = run.train.init_from;
  const bool adapts = run.model.lora.rank > 0;
  require<ConfigError>(!adapts || !path.empty(),
                       "model.lora.rank = {}: adapters are trained beside the weights of a model; name it by "
                       "train.init_from",
                       run.model.lora.rank);
  if (path.empty()) return path;
  std::string found;
  if (communicator.rank() == 0) {
    found = is_foreign_model(path) ? path : find_checkpoint_folder(path);
    const auto source = open_model(found, RunWeights::kMaster);
    require<ConfigError>(source->model().lora.rank == 0,
                         "train.init_from: {} has adapters; `mantissa export {} --out DIR` merges them, and "
                         "train.init_from=DIR begins with the result",
                         path, path);
    require_same_model(run, source->model());
  }
  return all_gather_texts(communicator, found)[0];
}

void load_initial_weights(Session& session, const std::string& found) {
  std::unique_ptr<ModelSource> source;
  run_on_all<CheckpointError>(session.communicator,
                              "train.init_from: ", [&] { source = open_found(found, RunWeights::kMaster); });
  session.sharded.optimizer.begin_load();
  load_shard(*source, session);
  session.sharded.optimizer.end_load(0);
  if (session.communicator.rank() == 0) log_info("weights: those of {}", source->path());
}

void carry_model_files(const Config& run) {
  const std::string to = run.train.run_dir + "/" + kCarriedFolder;
  const std::string from = run.train.init_from.empty() ? "" : carried_folder(run.train.init_from);
  if (!from.empty()) carry_files(from, to);
  const std::filesystem::path tokenizer = run.data.tokenizer;
  if (tokenizer.empty()) return;
  carry_tokenizer((std::filesystem::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path()).string(), to);
}

}  // namespace mantissa
