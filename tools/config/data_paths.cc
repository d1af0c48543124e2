#include "tools/config/data_paths.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/checkpoint_store.h"
#include "core/io/files.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kTokenSuffixes = {".bin", ".idx", ".safetensors"};
constexpr const char* kRunConfig = "config.yaml";

void require_one_kind(const std::string& folder, const std::vector<std::string>& files, DataFormat format) {
  const auto is_token_file = [](const std::string& file) {
    return std::ranges::any_of(kTokenSuffixes, [&file](std::string_view suffix) { return file.ends_with(suffix); });
  };
  const std::string suffixes = fmt::format("{}", fmt::join(kTokenSuffixes, ", "));
  const auto token_file = std::ranges::find_if(files, is_token_file);
  const auto text_file = std::ranges::find_if_not(files, is_token_file);
  require<DataError>(
      !files.empty(),
      "'{}' is a folder without files: expected text files, or token files ({}); for files in folders below it give "
      "'{}/**/*.txt'",
      folder, suffixes, folder);
  if (token_file != files.end() && text_file != files.end()) {
    throw DataError("'{}' holds text files ({}) and token files ({}): expected one kind; give '{}/*{}', or name files",
                    folder, *text_file, *token_file, folder, fs::path(*token_file).extension().string());
  }
  require<DataError>(format != DataFormat::kTokens || token_file != files.end(),
                     "'{}' holds no token files ({}), but {}, and data.format is tokens: if that has tokens, too, give "
                     "the pattern '{}/*{}', if it has text, give data.format=bytes",
                     folder, suffixes, files.front(), folder, fs::path(files.front()).extension().string());
  require<DataError>(format != DataFormat::kBytes || token_file == files.end(),
                     "'{}' holds token files ({}), and text was expected: a training reads them by data.format=tokens",
                     folder, files.front());
}

// `whole` without the folders of `end` at its end: "/a/b/c", "b/c" to "/a". Nothing if it ends differently.
std::optional<fs::path> without_end(fs::path whole, fs::path end) {
  end = end.lexically_normal();
  if (!end.has_filename()) end = end.parent_path();
  for (; !end.empty(); end = end.parent_path()) {
    if (end.filename() != whole.filename() || end.filename() == "..") return std::nullopt;
    whole = whole.parent_path();
  }
  return whole;
}

// "/a/b/c", "/x/b/c" to "/a", "/x".
std::pair<fs::path, fs::path> without_common_end(fs::path one, fs::path other) {
  while (one.has_relative_path() && other.has_relative_path() && one.filename() == other.filename()) {
    one = one.parent_path();
    other = other.parent_path();
  }
  return {one, other};
}

// The old and the new base folder of a moved run, from its configured and its actual run folder; nothing if the folder
// was renamed. The old base of relative paths is "".
std::optional<std::pair<fs::path, fs::path>> place_of_start(const fs::path& given, const fs::path& here) {
  if (given.is_absolute()) {
    const auto places = without_common_end(given.lexically_normal(), here);
    return places.first == given.lexically_normal() ? std::nullopt : std::optional(places);
  }
  const auto start = without_end(here, given);
  return start ? std::optional(std::pair(fs::path(), *start)) : std::nullopt;
}

bool is_there(const fs::path& pattern) {
  if (file_exists(pattern)) return true;
  return has_wildcard(pattern.string()) && !expand_glob(pattern.string()).empty();
}

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
    if (!error) fs::remove(target, error);  // it may be a link to a file elsewhere
    if (!error) fs::copy_file(source, target, error);
    if (error) throw CheckpointError("{}: cannot be written: {}", target.string(), error.message());
  }
}

ModelConfig model_of_file(const std::string& path) {
  Config config;
  ConfigNode root = parse_config_file(path);
  std::erase_if(root.members, [](const ConfigMember& member) { return member.key != "model"; });
  read_config(root, [&config](ConfigVisitor& visitor) { bind_config(visitor, config); });
  return config.model;
}

}  // namespace

std::vector<std::string> in_folders(const std::vector<std::string>& names, DataFormat format) {
  std::vector<std::string> patterns = names;
  for (std::string& name : patterns) {
    require<DataError>(name.find(',') == std::string::npos || is_there(name),
                       "'{}' is neither a file nor a folder; a list is written [{}]", name, name);
    if (has_wildcard(name) || !is_folder(name)) continue;
    const std::string folder = name.ends_with('/') && name.size() > 1 ? name.substr(0, name.size() - 1) : name;
    name = folder + "/*";
    require_one_kind(folder, expand_glob(name), format);
  }
  return patterns;
}

bool is_setting(const std::string& word) {
  const size_t equals = word.find('='), dot = word.find('.');
  const bool has_form = equals != std::string::npos && dot > 0 && dot < equals && word.find('/') > equals;
  return is_assignment(word) || (has_form && !is_there(word));
}

std::vector<std::string> text_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& pattern : in_folders(inputs, DataFormat::kBytes)) {
    const std::vector<std::string> names = expand_glob(pattern);
    require<DataError>(!names.empty(), "{}: no file matches this pattern", pattern);
    require<DataError>(is_there(names.front()), "{}: cannot read the file: No such file", pattern);
    files.insert(files.end(), names.begin(), names.end());
  }
  return files;
}

void refuse_foreign_model(const std::string& folder) {
  if (!file_exists(folder + "/config.json")) return;
  for (const char* const weights : {"*.safetensors", "pytorch_model*.bin"}) {
    if (expand_glob(folder + "/" + weights).empty()) continue;
    throw ConfigError(
        "'{0}' is a model of Hugging Face Transformers (config.json, {1}): make a run folder of it by "
        "`mantissa import {0} --out RUN`, or begin a training with its weights by train.init_from={0}",
        folder, weights);
  }
}

std::string configuration_file(const std::string& path) {
  if (!is_folder(path)) return path;
  refuse_foreign_model(path);
  require_readable(path + "/" + kRunConfig);
  return file_exists(path + "/" + kRunConfig) ? path + "/" + kRunConfig : path;
}

bool is_config_of_run(const fs::path& file) {
  const auto holds = [&file](const char* name) { return file_exists(file.parent_path() / name); };
  return file.filename() == kRunConfig && (holds("lock") || holds("metrics.jsonl"));
}

void relocate(Config& config, const fs::path& run_folder, const ConfigOrigins& origins) {
  const auto is_given_now = [&origins](const std::string& setting) {
    const auto origin = origins.find(setting);
    return origin != origins.end() && origin->second.starts_with("command line");
  };
  const fs::path here = real_path(run_folder), given = config.train.run_dir;
  const auto warn_of_lost = [&](const std::string& setting, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (is_given_now(setting) || fs::path(path).is_absolute() || is_there(path)) continue;
      constexpr size_t kLevel = std::string_view("warning: ").size();
      log_warn("{}",
               wrapped(fmt::format("{}: '{}' is not here. It begins where the run was started, and train.run_dir, "
                                   "which is absolute, does not tell where that was: start there, or give {}=...",
                                   setting, path, setting),
                       kLevel, Paths::kPassOver));
    }
  };
  if (given.is_absolute()) {
    for (const auto& [setting, files] : DataConfig::file_lists(config.data)) warn_of_lost(setting, *files);
  }
  if (is_given_now("train.run_dir") || here == real_path(given)) return;
  config.train.run_dir = here.string();
  auto place = place_of_start(given, here);
  if (!place) {
    // A copy, or a folder with a new name. Training must not change the run that it was made from.
    log_info("{}", wrapped(fmt::format("train.run_dir is '{}', whose settings were read, and not '{}', which they name",
                                       run_folder.string(), given.string()),
                           0, Paths::kPassOver));
    place = place_of_start(given.parent_path(), here.parent_path());
  }
  if (!place) return;
  const auto move = [&, &from = place->first, &to = place->second](const std::string& setting,
                                                                   std::vector<std::string>& paths) {
    if (is_given_now(setting)) return;
    for (std::string& path : paths) {
      const fs::path old = path;
      if (old.is_absolute() != given.is_absolute() || (old.is_absolute() && is_there(old))) continue;
      const fs::path rest = old.is_absolute() ? old.lexically_relative(from) : old;
      const fs::path moved = to / rest;
      if (rest.empty() || !is_there(moved)) continue;
      if (old.is_absolute() && *rest.begin() == "..") continue;  // it was not within what has moved
      log_info("{}: '{}' is taken as {}, from where the run was started", setting, path, moved.string());
      path = moved.string();
    }
  };
  for (const auto& [setting, files] : DataConfig::file_lists(config.data)) move(setting, *files);
}

ModelConfig model_of_weights(const std::string& path) try {
  const fs::path folder = path;
  if (read_foreign_settings != nullptr) {
    if (const auto foreign = read_foreign_settings(path)) return *foreign;
  }
  if (file_exists(folder / kManifestName)) {
    const nlohmann::json state = read_manifest(path).state;
    return parse_config(state.value("config", ""), path + "/" + kManifestName).model;
  }
  if (file_exists(folder / "config.yaml")) return model_of_file(path + "/config.yaml");
  throw ConfigError(
      "'{}' holds no weights: expected the folder of a Hugging Face model (config.json), a GPT-2 of llm.c "
      "(.bin), a run folder or a checkpoint folder",
      path);
} catch (const Error& error) {
  throw ConfigError("train.init_from: {}", error.what());
}

std::string tokenizer_of_weights(const std::string& path) {
  const std::string folder = path.empty() ? "" : carried_folder(path);
  return !folder.empty() && file_exists(folder + "/tokenizer.json") ? folder : "";
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
  require<ConfigError>(differences.empty(),
                       "train.init_from: {} is another model:\n  {}\nLeave these settings out to take its own",
                       run.train.init_from, fmt::join(differences, "\n  "));
}

std::string carried_folder(const std::string& path) {
  std::error_code error;  // then there is none
  if (file_exists(fs::path(path) / "config.json")) return path;
  const fs::path folder = fs::weakly_canonical(path, error);
  for (const fs::path& run : {folder, folder.parent_path().parent_path(), folder.parent_path()}) {
    if (is_folder(run / kCarriedFolder)) return (run / kCarriedFolder).string();
  }
  return "";
}

void carry_files(const std::string& from, const std::string& to) {
  copy(kOfModel, from, to);
  carry_tokenizer(from, to);
}

void carry_tokenizer(const std::string& from, const std::string& to) { copy(kOfTokenizer, from, to); }

}  // namespace mantissa
