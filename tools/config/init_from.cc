#include "tools/config/init_from.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "core/base/error.h"
#include "core/io/checkpoint_store.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOfModel[] = {"config.json", "generation_config.json"};
constexpr const char* kOfTokenizer[] = {
    "tokenizer.json",    "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "vocab.json",        "added_tokens.json",     "merges.txt",      "chat_template.jinja",
    "chat_template.json"};

void copy(std::span<const char* const> names, const std::string& from, const std::string& to) {
  for (const char* const name : names) {
    std::error_code error;
    const fs::path source = fs::path(from) / name, target = fs::path(to) / name;
    if (!fs::is_regular_file(source, error) || fs::equivalent(source, target, error)) continue;
    error.clear();
    fs::create_directories(to, error);
    if (!error) fs::copy_file(source, target, fs::copy_options::overwrite_existing, error);
    if (error) throw CheckpointError(fmt::format("{}: cannot be written: {}", target.string(), error.message()));
  }
}

ModelConfig model_of_file(const std::string& path) {
  Config config;
  read_config(parse_config_file(path), [&config](ConfigVisitor& visitor) { bind_config(visitor, config); });
  return config.model;
}

}  // namespace

ModelConfig model_of_weights(const std::string& path) try {
  const fs::path folder = path;
  std::error_code error;  // then it is not there
  if (read_foreign_settings != nullptr) {
    if (const auto foreign = read_foreign_settings(path)) return *foreign;
  }
  if (fs::exists(folder / kManifestName, error)) {
    const nlohmann::json state = read_manifest(path).state;
    return parse_config(state.value("config", ""), path + "/" + kManifestName).model;
  }
  if (fs::exists(folder / "config.yaml", error)) return model_of_file(path + "/config.yaml");
  throw ConfigError(
      fmt::format("'{}' holds no weights: expected the folder of a Hugging Face model (config.json), a model of llm.c "
                  "(.bin), a run folder or a checkpoint folder",
                  path));
} catch (const Error& error) {
  throw ConfigError(fmt::format("train.init_from: {}", error.what()));
}

std::string tokenizer_of_weights(const std::string& path) {
  const std::string folder = path.empty() ? "" : carried_folder(path);
  std::error_code error;  // then there is none
  return !folder.empty() && fs::exists(folder + "/tokenizer.json", error) ? folder : "";
}

void require_same_model(const Config& run, const ModelConfig& source) {
  constexpr std::array<std::string_view, 3> kMayDiffer = {"model.dropout", "model.init_stddev", "model.context"};
  Config other = run;
  other.model = source;
  const auto given = flatten(run), theirs = flatten(other);
  std::vector<std::string> differences;
  for (const auto& [path, value] : given) {
    const bool may_differ =
        path.starts_with("model.lora.") || (std::ranges::count(kMayDiffer, path) > 0 &&
                                            !(path == "model.context" && run.model.position == Position::kLearned));
    if (value != theirs.at(path) && !may_differ) {
      differences.push_back(fmt::format("{}: {}, and there {}", path, value, theirs.at(path)));
    }
  }
  if (differences.empty()) return;
  throw ConfigError(fmt::format("train.init_from: {} is another model:\n  {}\nLeave these settings out to take its own",
                                run.train.init_from, fmt::join(differences, "\n  ")));
}

std::string carried_folder(const std::string& path) {
  std::error_code error;  // then there is none
  if (fs::exists(fs::path(path) / "config.json", error)) return path;
  const fs::path folder = fs::weakly_canonical(path, error);
  for (const fs::path& run : {folder, folder.parent_path().parent_path(), folder.parent_path()}) {
    if (fs::is_directory(run / kCarriedFolder, error)) return (run / kCarriedFolder).string();
  }
  return "";
}

void carry_files(const std::string& from, const std::string& to) {
  copy(kOfModel, from, to);
  carry_tokenizer(from, to);
}

void carry_tokenizer(const std::string& from, const std::string& to) { copy(kOfTokenizer, from, to); }

}  // namespace mantissa
