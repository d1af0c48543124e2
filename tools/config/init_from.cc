#include "tools/config/init_from.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/base/error.h"
#include "core/io/checkpoint_store.h"
#include "tools/config/carried_files.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

ModelConfig model_of_file(const std::string& path) {
  Config config;
  read_config(parse_config_file(path), [&config](ConfigVisitor& visitor) { bind_config(visitor, config); });
  return config.model;
}

}  // namespace

ModelConfig model_of_weights(const std::string& path) try {
  const std::filesystem::path folder = path;
  std::error_code error;  // then it is not there
  if (read_foreign_settings != nullptr) {
    if (const auto foreign = read_foreign_settings(path)) return *foreign;
  }
  if (std::filesystem::exists(folder / kManifestName, error)) {
    const nlohmann::json state = read_manifest(path).state;
    return parse_config(state.value("config", ""), path + "/" + kManifestName).model;
  }
  if (std::filesystem::exists(folder / "config.yaml", error)) return model_of_file(path + "/config.yaml");
  throw ConfigError(
      fmt::format("'{}' holds no weights: expected the folder of a Hugging Face model (config.json), a GPT-2 of llm.c "
                  "(.bin), a run folder or a checkpoint folder",
                  path));
} catch (const Error& error) {
  throw ConfigError(fmt::format("train.init_from: {}", error.what()));
}

std::string tokenizer_of_weights(const std::string& path) {
  const std::string folder = path.empty() ? "" : carried_folder(path);
  std::error_code error;  // then there is none
  return !folder.empty() && std::filesystem::exists(folder + "/tokenizer.json", error) ? folder : "";
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

}  // namespace mantissa
