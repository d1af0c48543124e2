#include "models/plugin_loader.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>

#include "core/io/files.h"
#include "models/plugin.h"

namespace mantissa {
namespace {

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
