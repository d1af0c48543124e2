#include "core/io/checkpoint_manifest.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 2;  // 2: with the order of saves
constexpr std::string_view kHead = "{\"manifest\": ";
constexpr std::string_view kHashLine = ",\n\"xxh3_128\": \"";
constexpr std::string_view kTail = "\"}\n";
constexpr size_t kHashDigits = 32;

void check_finite(const json& value, const std::string& path) {
  if (value.is_number_float()) {
    MANTISSA_CHECK(std::isfinite(value.get<double>()),
                   "[checkpoint] the state at {} is not finite, JSON cannot hold it", path);
  }
  if (!value.is_structured()) return;
  for (const auto& [key, item] : value.items()) check_finite(item, path + "/" + key);
}

std::string hash_of(std::string_view text) { return xxh3_128_hex(std::as_bytes(std::span(text))); }

}  // namespace

std::string write_manifest(const Checkpoint& checkpoint) {
  check_finite(checkpoint.state, "");
  nlohmann::ordered_json manifest;
  manifest["format_version"] = kFormatVersion;
  manifest["step"] = checkpoint.step;
  manifest["save"] = checkpoint.save;
  manifest["model_fingerprint"] = checkpoint.model_fingerprint;
  manifest["files"] = nlohmann::ordered_json::array();
  for (const CheckpointFile& file : checkpoint.files) {
    manifest["files"].push_back({{"name", file.name}, {"size_bytes", file.size_bytes}, {"xxh3_128", file.xxh3_128}});
  }
  manifest["state"] = checkpoint.state;
  std::string text = std::string(kHead) + manifest.dump(2);
  const std::string hash = hash_of(text);
  return fmt::format("{}{}{}{}", text, kHashLine, hash, kTail);
}

Checkpoint parse_manifest(const std::string& text, const std::string& path) {
  const auto fail = [&path](const std::string& why) -> void {
    throw CheckpointError(fmt::format("{}: {}", path, why));
  };
  const size_t trailer = kHashLine.size() + kHashDigits + kTail.size();
  if (text.size() < kHead.size() + trailer)
    fail(fmt::format("truncated: a manifest has at least {} bytes, got {}", kHead.size() + trailer, text.size()));
  const std::string_view view(text);
  const std::string_view body = view.substr(0, view.size() - trailer), end = view.substr(body.size());
  const std::string_view stored = end.substr(kHashLine.size(), kHashDigits);
  if (!body.starts_with(kHead) || !end.starts_with(kHashLine) || !end.ends_with(kTail)) {
    fail("damaged: the manifest's first or last line is not as written");
  }
  if (const std::string found = hash_of(body); found != stored) {
    fail(fmt::format("damaged: expected XXH3-128 {}, found {}", stored, found));
  }
  try {
    const json manifest = json::parse(body.substr(kHead.size()));
    const int version = manifest.at("format_version").get<int>();
    if (version != kFormatVersion) {
      fail(fmt::format("format version {} is not the one that this program reads, {}", version, kFormatVersion));
    }
    Checkpoint checkpoint{.folder = {},
                          .step = manifest.at("step").get<int64_t>(),
                          .save = manifest.at("save").get<int64_t>(),
                          .model_fingerprint = manifest.at("model_fingerprint").get<std::string>(),
                          .files = {},
                          .state = manifest.at("state")};
    for (const json& file : manifest.at("files")) {
      checkpoint.files.push_back({file.at("name").get<std::string>(), file.at("size_bytes").get<uint64_t>(),
                                  file.at("xxh3_128").get<std::string>()});
    }
    return checkpoint;
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a manifest: {}", path, error.what()));
  }
}

}  // namespace mantissa
