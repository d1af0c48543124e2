#include "tools/config/config.h"

#include <xxhash.h>

#include <array>
#include <filesystem>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/io/files.h"
#include "models/model.h"
#include "tools/config/config_binding.h"
#include "tools/config/data_paths.h"
#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

constexpr std::string_view kNoPreset = "none";

ConfigBinding binding(Config& config) {
  return [&config](ConfigVisitor& visitor) { bind_config(visitor, config); };
}

// Whether the tree has every setting of the model.
bool gives_whole_model(const ConfigNode& root) {
  return std::ranges::all_of(flatten(Config{}), [&root](const auto& setting) {
    return !setting.first.starts_with("model.") || root.below(setting.first) != nullptr;
  });
}

// Makes model.plugin absolute, and takes the digest of the file if none is known. Relative paths start at the file's
// folder, on the command line at the working directory.
void find_plugin(ModelConfig& model, const std::filesystem::path& folder, const ConfigOrigins& written) {
  if (model.plugin.empty()) {
    require<ConfigError>(model.plugin_digest.empty(),
                         "model.plugin_digest belongs to model.plugin, which is not given");
    return;
  }
  const auto origin = written.find("model.plugin");
  const bool is_in_file = origin != written.end() && !origin->second.starts_with("command line");
  const std::filesystem::path path = is_in_file ? folder / model.plugin : std::filesystem::path(model.plugin);
  model.plugin = std::filesystem::absolute(path).lexically_normal().string();
  if (model.plugin_digest.empty()) model.plugin_digest = plugin_digest(model.plugin);
}

// `folder`: of the file that the tree was read from.
Config build(ConfigNode root, const std::filesystem::path& folder, const std::vector<std::string>& overrides,
             ConfigOrigins* origins) {
  for (const std::string& assignment : overrides) apply_override(root, assignment);
  drop_fixed_settings(root, /*written=*/false);
  refuse_unavailable(root);
  Config config;
  // Model settings that are missing come from the weights. A run's file has all of them.
  const ConfigNode* const init_from = root.below("train.init_from");
  const std::string weights = init_from != nullptr ? init_from->text : "";
  if (!weights.empty() && !gives_whole_model(root)) config.model = model_of_weights(weights);
  const ModelConfig source = config.model;
  config.data.tokenizer = tokenizer_of_weights(weights);
  ConfigOrigins written = read_config(root, binding(config), config_synonyms());
  if (!weights.empty() && !gives_whole_model(root)) require_same_model(config, source);
  if (config.scaler.preset != kNoPreset) {
    // The preset's values replace the defaults; keys that are given are read once more on top of them.
    try {
      config.scaler.scaler = scaler_preset(config.scaler.preset);
    } catch (const ConfigError& error) {
      throw ConfigError("{}: scaler.preset: {}", written["scaler.preset"], error.what());
    }
    read_config(root, binding(config));
  }
  find_plugin(config.model, folder, written);
  config.resolve_scaler_mode();
  config.optimizer.schedule.total_steps = config.train.steps;
  config.optimizer.adamw.seed = config.train.seed;
  validate_phases(config, written);
  if (origins != nullptr) *origins = std::move(written);
  return config;
}

bool starts_with_any(const std::string& path, const auto& prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return path.starts_with(prefix); });
}

// Whether the tail of the training data is kept for evaluation and not trained on.
bool sets_tail_aside(const Config& config) { return config.train.eval_interval > 0 && config.data.sets_tail_aside(); }

// Path to value, with `auto` resolved: old checkpoints keep resolved values.
std::map<std::string, std::string> resolved_settings(const Config& config) {
  auto settings = flatten(config);
  settings["scaler.mode"] = name(config.scaler.scaler.mode);
  return settings;
}

// Settings of what a run reports, and the files of its data: they may move, and TokenData::fingerprint() compares their
// contents.
constexpr std::array<std::string_view, 9> kReporting = {
    "data.train",    "data.validation",   "data.tokenizer", "train.eval_", "train.evaluations",
    "train.sample_", "train.tensorboard", "probe.",         "profile"};

bool is_reporting(const std::string& path) {
  const bool names_data = path.starts_with("data.blend[") && path.ends_with(".files");
  return names_data || starts_with_any(path, kReporting);
}

// "optimizer.lr: 0.0003 -> 0.0001" for each of these settings that differs.
template <typename Include>
std::vector<std::string> differences(const Config& saved, const Config& now, Include include) {
  auto before = resolved_settings(saved), after = resolved_settings(now);
  std::vector<std::string> found;
  for (const auto& [path, value] : before) after.try_emplace(path, "(absent)");
  for (const auto& [path, value] : after) {
    const std::string& old = before.try_emplace(path, "(absent)").first->second;
    if (old != value && include(path)) found.push_back(fmt::format("{}: {} -> {}", path, old, value));
  }
  return found;
}

template <typename Include>
uint64_t hash_settings(const Config& config, Include include) {
  std::string text;
  for (const auto& [path, value] : flatten(config)) {
    if (include(path)) text += path + ": " + value + "\n";
  }
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace

void Config::resolve_scaler_mode() {
  // Small gradients vanish in fp16, computed or sent. The wire counts even on a single rank: the mode must not depend
  // on the number of ranks, so that any number can continue a checkpoint.
  const bool has_fp16 = precision.uses_fp16() || wire() == DType::kF16;
  const bool needs_scale = scaler.mode == ScalerChoice::kAuto && has_fp16;
  scaler.scaler.mode = scaler.mode == ScalerChoice::kStatic                   ? ScalerMode::kStatic
                       : scaler.mode == ScalerChoice::kDynamic || needs_scale ? ScalerMode::kDynamic
                                                                              : ScalerMode::kNone;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides, ConfigOrigins* origins) {
  ConfigOrigins written;
  const std::filesystem::path file = configuration_file(path);
  require<ConfigError>(
      !is_folder(file),
      "'{0}' is a folder without config.yaml, and so no run folder: expected one, or a YAML file; data "
      "are given after it, by data.train={0}",
      path);
  ConfigNode root = parse_config_file(file);
  if (is_config_of_run(file)) drop_fixed_settings(root, /*written=*/true);
  Config config = build(std::move(root), file.parent_path(), overrides, &written);
  if (is_config_of_run(file)) relocate(config, file.has_parent_path() ? file.parent_path() : ".", written);
  if (origins != nullptr) *origins = std::move(written);
  return config;
}

Config parse_config(const std::string& yaml, const std::string& source, const std::vector<std::string>& overrides,
                    ConfigOrigins* origins) {
  ConfigNode root = parse_config_text(yaml, source);
  drop_fixed_settings(root, /*written=*/true);
  return build(std::move(root), {}, overrides, origins);
}

std::string to_yaml(const Config& config) {
  Config copy = config;
  const std::string text = write_config(binding(copy));
  if (config.scaler.mode != ScalerChoice::kAuto) return text;
  return text +
         fmt::format("# scaler.mode: auto is {} with this precision and wire\n", name(config.scaler.scaler.mode));
}

uint64_t fingerprint(const Config& config) {
  return hash_settings(config, [](const std::string&) { return true; });
}

std::string model_fingerprint(const Config& config) {
  const uint64_t hash = hash_settings(config, [](const std::string& path) {
    return path.starts_with("model.") && path != "model.dropout" && path != "model.lora.dropout" &&
           path != "model.init_stddev" && !path.starts_with("model.plugin");
  });
  return fmt::format("{:016x}", hash);
}

std::vector<std::string> training_differences(const Config& saved, const Config& now) {
  static constexpr std::array<std::string_view, 22> kOfAStart = {
      "device",          "train.stop_at_step", "train.log_interval",
      "train.run_dir",   "train.threads",      "train.micro_batch",
      "comm.backend",    "checkpoint.",        "faults.",
      "test.",           "comm.bucket_mib",    "cuda.",
      "train.recompute", "train.pin_threads",  "train.packed_weights",
      "comm.gather",     "train.measure_peak", "train.max_minutes",
      "comm.exchange",   "watchdog.",          "integrity.",
      "straggler."};
  const bool tail_changes = sets_tail_aside(saved) != sets_tail_aside(now);
  const AdaptiveOptions& watched = now.precision_adaptive.options;
  const int lanes = saved.train.lanes > 0 ? saved.train.lanes : saved.train.kept_lanes;
  const bool keeps_lanes = now.train.lanes == 0 || now.train.lanes == lanes;
  const auto shapes_training = [&](const std::string& path) {
    if (path == "train.lanes") return !keeps_lanes;
    const bool decides_on_tail = path == "data.validation" || path == "train.eval_interval";
    const bool decides_on_level = (watched.stalled_evaluations > 0 && path.starts_with("train.eval_")) ||
                                  (watched.underflow_share > 0.0 && path == "probe.interval") ||
                                  (watched.gradient_noise > 0.0 && path == "train.micro_batch");
    return path == "data.validation_fraction" || (tail_changes && decides_on_tail) || decides_on_level ||
           !(starts_with_any(path, kOfAStart) || is_reporting(path) || path == "model.plugin");
  };
  return differences(saved, now, shapes_training);
}

std::vector<std::string> reporting_differences(const Config& saved, const Config& now, const ConfigOrigins& origins) {
  return differences(saved, now, [&](const std::string& path) {
    const auto origin = origins.find(path);
    const bool is_given_now = origin != origins.end() && origin->second.starts_with("command line");
    const bool may_have_moved = path.starts_with("data.") && saved.train.run_dir != now.train.run_dir;
    return is_reporting(path) && (is_given_now || !may_have_moved);
  });
}

bool is_assignment(const std::string& word) {
  const std::string first = word.substr(0, word.find_first_of(".[="));
  return word.find('=') != std::string::npos && std::ranges::any_of(flatten(Config{}), [&first](const auto& setting) {
           return setting.first == first || setting.first.starts_with(first + ".");
         });
}

std::vector<std::string> settings_named(std::string name) {
  name.erase(0, std::min(name.size(), name.find_first_not_of('-')));
  std::ranges::replace(name, '-', '_');
  std::vector<std::string> found;
  for (const auto& [word, meaning] : config_synonyms()) {
    if (word == name) found.push_back(meaning);
  }
  for (const auto& [path, value] : flatten(Config{})) {
    if (("." + path).ends_with("." + name)) found.push_back(path);
  }
  return found;
}

bool steers_training(std::string_view path) {
  static constexpr std::array<std::string_view, 8> kSteering = {
      "train.steps",           "optimizer.lr",    "optimizer.final_lr", "optimizer.schedule", "optimizer.warmup_steps",
      "optimizer.decay_steps", "optimizer.clip.", "stop_rules."};
  return std::ranges::any_of(kSteering, [path](std::string_view setting) {
    return setting.ends_with('.') ? path.starts_with(setting) : path == setting;
  });
}

}  // namespace mantissa
