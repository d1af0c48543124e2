#include "tools/config/carried_files.h"

#include <fmt/core.h>

#include <filesystem>
#include <span>

#include "core/base/error.h"

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

}  // namespace

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
