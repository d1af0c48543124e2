#include "models/model.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>

#include "core/base/round_up.h"
#include "core/io/files.h"
#include "models/layers.h"
#include "models/plugin.h"

namespace mantissa {
namespace {

// A plugin with a copy of this file would register its models where the program does not look.
[[gnu::used]] const char kRegistryMark[] = MANTISSA_REGISTRY_MARK;

struct ModelEntry {
  ModelFactory create;
  std::vector<std::string> options;
};

std::map<std::string, ModelEntry>& models() {
  static std::map<std::string, ModelEntry> instance;
  return instance;
}

std::string_view option_name(std::string_view option) { return option.substr(0, option.find('=')); }

void require_options(const ModelConfig& config, const std::vector<std::string>& known) {
  for (const std::string& option : config.options) {
    const std::string_view name = option_name(option);
    require<ConfigError>(std::ranges::count(known, name) > 0,
                         "model.options: model '{}' has no option '{}'; it has: {}", config.name, name,
                         known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
    config.option(name, 0.0);
  }
}

MappedFile open_plugin(const std::string& path) {
  try {
    return MappedFile(path);
  } catch (const UnreadableFile& error) {
    throw ConfigError(fmt::format("model.plugin: {}; give model.plugin=FILE if it has moved", error.what()));
  }
}

std::string digest_of(std::string_view bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

// The headers and compiler that the file was made with; empty if it is not a plugin.
std::string_view stamp_in(std::string_view bytes) {
  constexpr std::string_view kMark = MANTISSA_PLUGIN_MARK "headers ";
  const size_t found = bytes.find(kMark);
  if (found == std::string_view::npos) return {};
  const std::string_view stamp = bytes.substr(found + std::string_view(MANTISSA_PLUGIN_MARK).size());
  return stamp.substr(0, std::min(stamp.find('\0'), size_t{200}));
}

void require_plugin(const std::string& path, std::string_view bytes, const std::string& digest) {
  constexpr std::string_view kElf =
      "\x7f"
      "ELF";
  const std::string_view stamp = bytes.starts_with(kElf) ? stamp_in(bytes) : std::string_view();
  require<ConfigError>(!stamp.empty(),
                       "model.plugin: '{}' is not a plugin: expected a shared library whose source includes "
                       "\"models/plugin.h\"",
                       path);
  require<ConfigError>(stamp == MANTISSA_STAMP,
                       "model.plugin: '{}' was compiled with {}, and this program with {}: compile it with the headers "
                       "and the compiler of this program (tools/bundle --development)",
                       path, stamp, MANTISSA_STAMP);
  require<ConfigError>(bytes.find(MANTISSA_REGISTRY_MARK) == std::string_view::npos,
                       "model.plugin: '{}' has a copy of our library in it, with a registry that the program does not "
                       "see: link it without libmantissa.a",
                       path);
  require<ConfigError>(digest.empty() || digest == digest_of(bytes),
                       "model.plugin: '{}' has changed since the run began: its digest was {}, and is {}; restore the "
                       "file, or accept this one by model.plugin_digest={}",
                       path, digest, digest_of(bytes), digest_of(bytes));
}

}  // namespace

std::optional<BlockSelection> BlockSelection::parse(std::string_view text) {
  BlockSelection result;
  if (text == "all") return result;
  result.is_all_ = false;
  if (text == "none") return result;
  const auto read = [&text](int64_t& value) {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
    return parsed.ec == std::errc() && value >= 0;
  };
  const auto skip = [&text](char c) {
    const bool is_there = text.starts_with(c);
    if (is_there) text.remove_prefix(1);
    return is_there;
  };
  do {
    int64_t first = 0, last = 0;
    if (!read(first)) return std::nullopt;
    last = first;
    if (skip('-') && (!read(last) || last < first)) return std::nullopt;
    if (!result.ranges_.empty() && first <= result.ranges_.back().second) return std::nullopt;
    result.ranges_.emplace_back(first, last);
  } while (skip(','));
  return text.empty() ? std::optional(result) : std::nullopt;
}

BlockSelection BlockSelection::of(const std::vector<bool>& chosen) {
  BlockSelection result;
  if (std::ranges::count(chosen, false) == 0) return result;
  result.is_all_ = false;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto block = static_cast<int64_t>(i);
    if (!chosen[i]) continue;
    if (i > 0 && chosen[i - 1]) {
      result.ranges_.back().second = block;
    } else {
      result.ranges_.emplace_back(block, block);
    }
  }
  return result;
}

bool BlockSelection::contains(int64_t block) const {
  return is_all_ || std::ranges::any_of(
                        ranges_, [block](const auto& range) { return block >= range.first && block <= range.second; });
}

std::string BlockSelection::text() const {
  if (is_all_) return "all";
  if (ranges_.empty()) return "none";
  std::string text;
  for (const auto& [first, last] : ranges_) {
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

double training_flops_per_token(const ModelConfig& config) {
  const double width = static_cast<double>(config.width), mlp = static_cast<double>(config.resolved_mlp_width());
  const double mixed = static_cast<double>(config.heads * config.resolved_head_dim());
  const double packed_qkv =
      static_cast<double>((config.heads + 2 * config.resolved_kv_heads()) * config.resolved_head_dim());
  const double mlp_matrices = is_gated(config.activation) ? 3 : 2;
  const double block = width * packed_qkv + mixed * width + mlp_matrices * width * mlp;
  const double matrix_parameters =
      static_cast<double>(config.layers) * block + width * static_cast<double>(config.vocab);
  int64_t keys = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    const int64_t window = config.window_of(i);
    keys += window > 0 ? std::min(window, config.context) : config.context;
  }
  const double products = config.lora.rank > 0 ? 4 : 6;  // frozen weights have no gradient
  return products * matrix_parameters + 12 * static_cast<double>(keys) * mixed;
}

double ModelConfig::option(std::string_view name, double fallback) const {
  const auto found = std::ranges::find(options, name, option_name);
  if (found == options.end()) return fallback;
  double value = 0.0;
  const char *const begin = found->data() + std::min(name.size() + 1, found->size()), *const end =
                                                                                          found->data() + found->size();
  const auto parsed = std::from_chars(begin, end, value);
  require<ConfigError>(parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(value),
                       "model.options: expected {}=NUMBER, got '{}'", name, *found);
  return value;
}

bool register_model(const std::string& name, ModelFactory factory, std::vector<std::string> options) {
  return models().emplace(name, ModelEntry{std::move(factory), std::move(options)}).second;
}

std::unique_ptr<Model> create_model(const ModelConfig& config, ParameterSet& parameters) {
  if (!config.plugin.empty()) load_plugin(config.plugin, config.plugin_digest);
  const auto found = models().find(config.name);
  require<ConfigError>(found != models().end(), "model.name: expected one of {}, got '{}'",
                       fmt::join(model_names(), ", "), config.name);
  require_options(config, found->second.options);
  auto model = found->second.create(config, parameters);
  if (config.lora.rank > 0) freeze_base(parameters, config.lora);
  return model;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : models()) names.push_back(name);
  return names;
}

void require_causal(const Model& model, const ModelConfig& config) {
  require<ConfigError>(model.objective() == Objective::kNextToken,
                       "model '{}' predicts masked tokens: it cannot continue a text", config.name);
}

int64_t padded_length(int64_t length, int64_t context) {
  constexpr int64_t kStep = 64;
  return std::min(round_up(length, kStep), context);
}

Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config) {
  const int64_t padded = padded_length(length, config.context);
  const Tensor hidden = model.hidden(tape, tokens.slice(0, padded), padded).value;  // (padded, width)
  const Var last{hidden.slice((length - 1) * config.width, config.width).view(Shape{1, config.width})};
  return tape.cast(model.head(tape, last).value, DType::kF32).view(Shape{config.vocab});
}

std::string plugin_digest(const std::string& path) { return digest_of(open_plugin(path).text()); }

void load_plugin(const std::string& path, const std::string& digest) {
  static std::mutex mutex;
  static std::map<std::string, std::string> loaded;  // digests by path
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(path);
  if (known != loaded.end() && (digest.empty() || digest == known->second)) return;
  std::string mine;
  {
    const MappedFile file = open_plugin(path);
    require_plugin(path, file.text(), digest);
    mine = digest_of(file.text());
  }
  require<ConfigError>(known == loaded.end(),
                       "model.plugin: '{}' has changed while this program runs, which has loaded the file with digest "
                       "{}: start it again",
                       path, known == loaded.end() ? "" : known->second);
  const std::vector<std::string> before = model_names();
  // With a slash, or the loader would search its own folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw ConfigError(fmt::format("model.plugin: '{}' cannot be loaded: {}", path, dlerror()));
  }
  require<ConfigError>(model_names().size() > before.size(),
                       "model.plugin: '{}' registers no model under a name of its own; taken are: {}", path,
                       fmt::join(before, ", "));
  loaded.emplace(path, mine);
}

}  // namespace mantissa
