#include "tools/version.h"

#include <fmt/format.h>
#include <spdlog/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "comm/communicator.h"
#include "core/backend/registry.h"
#include "core/base/error.h"

namespace mantissa {

extern const char* const kCommit;  // of the sources, "+" with changes that are not committed; written by the build
extern const char* const kCudaCompiler;  // "nvcc 13.0.88 for sm_90a", or empty

namespace {

constexpr const char* kVersion = "0.1.0";

std::string devices_of(const std::string& backend) {
  const BackendEntry& entry = find_backend(backend);
  if (const std::string reason = entry.unusable_reason(0); !reason.empty()) {
    return fmt::format("  {}: cannot be used: {}\n", backend, reason);
  }
  std::string text;
  for (int index = 0; index < std::max(1, entry.device_count()); ++index) {
    try {
      text += fmt::format("  {}\n", entry.create(index)->describe());
    } catch (const Error& error) {
      text += fmt::format("  {}: device {} cannot be used: {}\n", backend, index, error.what());
    }
  }
  return text;
}

std::string transport(const std::string& name) {
  const CommunicatorEntry& entry = find_communicator(name);
  if (const std::string reason = entry.unusable_reason(); !reason.empty()) {
    return fmt::format("  {}: cannot be used: {}\n", name, reason);
  }
  const std::string library = entry.library();
  return library.empty() ? fmt::format("  {}\n", name) : fmt::format("  {}: {}\n", name, library);
}

}  // namespace

std::string version_line() { return fmt::format("mantissa {} (commit {})", kVersion, kCommit); }

std::string version_text() {
  std::string text = version_line() + "\n";
  text += fmt::format("compilers\n  g++ {}\n", __VERSION__);
  if (*kCudaCompiler != '\0') text += fmt::format("  {}\n", kCudaCompiler);
  text +=
      fmt::format("libraries\n  fmt {}.{}.{}, spdlog {}.{}.{}, nlohmann-json {}.{}.{}, CLI11 {}\n", FMT_VERSION / 10000,
                  FMT_VERSION / 100 % 100, FMT_VERSION % 100, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH,
                  NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH, CLI11_VERSION);
  text += "devices\n";
  for (const std::string& name : backend_names()) text += devices_of(name);
  text += "transports\n";
  for (const std::string& name : communicator_names()) text += transport(name);
  text.pop_back();  // the caller ends the line
  return text;
}

}  // namespace mantissa
