#include "core/io/pending_output.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>

#include "core/base/error.h"

namespace mantissa {

namespace fs = std::filesystem;

PendingOutput::PendingOutput(Kind kind, std::string name) : name_(std::move(name)) {
  while (name_.size() > 1 && name_.ends_with('/')) name_.pop_back();
  if (name_.empty()) throw ConfigError("--out: expected a name, got an empty text");
  partial_ = name_ + kSuffix;
  std::error_code error;
  const bool may_be_empty = kind == Kind::kFolder && fs::is_directory(name_, error);
  if (fs::exists(name_, error) && !(may_be_empty && fs::is_empty(name_, error))) {
    throw ConfigError(fmt::format("{}: already exists; give another name, or remove it", name_));
  }
  fs::remove_all(partial_, error);
  if (kind == Kind::kFolder) fs::create_directories(partial_, error);
  if (error) throw ConfigError(fmt::format("{}: it cannot be made: {}", name_, error.message()));
}

PendingOutput::~PendingOutput() {
  std::error_code error;  // what stays bears the suffix
  if (!is_finished_) fs::remove_all(partial_, error);
}

void PendingOutput::finish() {
  std::error_code error;
  fs::rename(partial_, name_, error);  // over an empty folder, too
  if (error) throw ConfigError(fmt::format("{}: cannot be renamed to {}: {}", partial_, name_, error.message()));
  is_finished_ = true;
}

}  // namespace mantissa
