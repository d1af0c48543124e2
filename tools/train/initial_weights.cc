#include "tools/train/initial_weights.h"

#include <filesystem>

#include "core/base/log.h"
#include "core/data/token_shard.h"
#include "core/io/files.h"
#include "core/io/safetensors.h"
#include "tools/config/data_paths.h"
#include "tools/model/exchange/model_source.h"
#include "tools/model/runtime/open_model.h"
#include "tools/run/state/run_folder.h"
#include "tools/text/chat/chat_template.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {
namespace {

ModelConfig without_adapters(ModelConfig model) {
  model.lora = {};
  return model;
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

}  // namespace

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

namespace {

// No file of a run names its positions: they are written down for a run with shorter sequences.
void keep_positions(const Config& run, const std::string& folder) {
  const int64_t positions = positions_of(run.train.init_from, model_of_weights(run.train.init_from));
  if (positions_of(run.train.run_dir, run.model) >= positions) return;
  nlohmann::json config = carried_config(run.train.run_dir);
  config["max_position_embeddings"] = positions;
  std::filesystem::create_directories(folder);
  write_file<CheckpointError>(folder + "/config.json", config.dump(2) + "\n");
}

// The chat template of the data, if it holds conversations, and the first file with it.
std::pair<std::string, std::string> chat_template_of(const DataConfig& data) {
  std::string first, where;
  for (const auto& [setting, files] : DataConfig::file_lists(data)) {
    for (const std::string& pattern : in_folders(*files, data.format)) {
      for (const std::string& path : expand_glob(pattern)) {
        if (!path.ends_with(".safetensors")) continue;
        const SafetensorsReader shard(path);
        const auto found = shard.metadata().find(kChatTemplateKey);
        if (found == shard.metadata().end() || found->second == first) continue;
        if (first.empty()) {
          std::tie(first, where) = std::pair(found->second, path);
        } else {
          log_warn("{}: its conversations have another chat template than those of {}, whose template the run keeps",
                   path, where);
          return {first, where};
        }
      }
    }
  }
  return {first, where};
}

// A model that learns conversations is used with their template, and its texts end at the end of a turn.
void keep_chat_template(const Config& run, const std::string& folder) {
  const auto [source, data] = chat_template_of(run.data);
  const std::string own = tokenizer_of_weights(run.train.run_dir), kept = folder + "/chat_template.jinja";
  if (source.empty() || (own.empty() && run.data.tokenizer.empty())) return;
  std::optional<ChatTemplate> known;
  try {
    known = find_chat_template(folder, "");
  } catch (const DataError&) {  // there is none, or another kind
  }
  if (!known || known->jinja() != source) {
    if (known || std::filesystem::exists(kept)) {
      log_warn("{}: now the chat template of {}; the template before was another", kept, data);
    }
    std::filesystem::create_directories(folder);
    write_file<CheckpointError>(kept, source);
    known = find_chat_template(folder, "");
  }
  const auto tokenizer = open_tokenizer(own.empty() ? run.data.tokenizer : own);
  const auto end_of_turn = tokenizer->id_of(known->end_of_turn());
  std::set<int32_t> ends = end_ids(run.train.run_dir);
  if (!end_of_turn) log_warn("the end of a turn is no token of the tokenizer: other programs write on behind it");
  if (!end_of_turn || !ends.insert(*end_of_turn).second) return;
  ends.insert(tokenizer->eos().value_or(*end_of_turn));
  nlohmann::json json = carried_config(run.train.run_dir, "generation_config.json");
  json["eos_token_id"] = ends;
  write_file<CheckpointError>(folder + "/generation_config.json", json.dump(2) + "\n");
}

}  // namespace

void carry_model_files(const Config& run, const ResumePoint* checkpoint) {
  const std::string to = run.train.run_dir + "/" + kCarriedFolder;
  const std::string source = checkpoint != nullptr ? checkpoint->folder : run.train.init_from;
  const std::string from = source.empty() ? "" : carried_folder(source);
  if (!from.empty()) carry_files(from, to);
  if (checkpoint == nullptr && !source.empty()) keep_positions(run, to);
  const std::filesystem::path tokenizer = run.data.tokenizer;
  if (!tokenizer.empty()) {
    const std::string folder = (is_folder(tokenizer) ? tokenizer : tokenizer.parent_path()).string();
    const auto given = text_of_file(folder + "/tokenizer.json"), kept = text_of_file(to + "/tokenizer.json");
    const bool is_new = given && given != kept;
    if (checkpoint == nullptr || is_new) carry_tokenizer(folder, to);
    if (checkpoint != nullptr && is_new && kept) log_warn("{}/tokenizer.json: now that of {}", to, folder);
  }
  keep_chat_template(run, to);
}

}  // namespace mantissa
