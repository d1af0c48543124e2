#include "tools/train/run_model.h"

#include <charconv>
#include <filesystem>

#include "core/base/log.h"
#include "tools/config/initial_model.h"
#include "tools/exchange/carried_files.h"
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
  if (pieces.empty()) {
    tensors = {};
    tensors.add(std::make_shared<const SafetensorsReader>(checkpoint.folder + "/" + kModelFile));
    return std::make_unique<ModelSource>(checkpoint.folder, model, std::move(tensors), std::move(parts));
  }
  for (auto& [parameter, part] : parts) {
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
  std::vector<float> zeros;
  for (int index = 0; index < parameters.size(); ++index) {
    const Parameter& parameter = parameters[index];
    if (!optimizer.needs(index, 0, parameter.numel())) continue;
    const auto count = static_cast<size_t>(parameter.numel());
    if (parameter.working_dtype == DType::kF64) {
      std::vector<double> values(count), none(count);
      source.read(parameter.name, DType::kF64, std::as_writable_bytes(std::span(values)));
      optimizer.load({.parameter = index, .doubles = {.weights = values, .m = none, .v = none}});
      continue;
    }
    const std::vector<float> values = source.values(parameter.name);
    zeros.resize(std::max(zeros.size(), count));
    const MomentValues none{.values = std::span(zeros).first(count)};
    optimizer.load({.parameter = index, .weights = values, .m = none, .v = none});
  }
}

}  // namespace

std::unique_ptr<ModelSource> open_model(const std::string& path, RunWeights weights) {
  if (is_foreign_model(path)) return open_foreign_model(path);
  return open_run(open_checkpoint(find_checkpoint_folder(path)), weights);
}

std::string find_initial_weights(const Config& run, Communicator& communicator) {
  const std::string& path = run.train.init_from;
  if (path.empty()) return path;
  std::string found;
  if (communicator.rank() == 0) {
    found = is_foreign_model(path) ? path : find_checkpoint_folder(path);
    require_same_model(run, open_model(found, RunWeights::kMaster)->model());
  }
  return all_gather_texts(communicator, found)[0];
}

void load_initial_weights(Session& session, const std::string& found) {
  std::unique_ptr<ModelSource> source;
  std::string mine;
  try {
    source = is_foreign_model(found) ? open_foreign_model(found) : open_run(read_manifest(found), RunWeights::kMaster);
  } catch (const Error& error) {
    mine = error.what();
  }
  const RankText error = first_text(session.communicator, mine);
  if (error.rank >= 0) throw CheckpointError(fmt::format("train.init_from: {} (rank {})", error.text, error.rank));
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
