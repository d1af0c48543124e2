#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "core/base/error.h"
#include "core/io/checkpoint_manifest.h"
#include "core/io/checkpoint_name.h"
#include "core/io/checkpoint_store.h"
#include "core/io/mapped_file.h"

namespace mantissa {
namespace {

MappedFile map_file(const std::string& path) {
  try {
    return MappedFile(path);
  } catch (const std::system_error& error) {
    throw CheckpointError(fmt::format("{}: cannot read the file: {}", path, error.code().message()));
  }
}

// The last name of a path, whether or not a slash follows it.
std::string last_name(const std::string& folder) {
  const std::filesystem::path path(folder);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

Checkpoint read_manifest(const std::string& folder) {
  const std::string manifest_path = folder + "/" + kManifestName;
  const MappedFile manifest = map_file(manifest_path);
  const auto text = manifest.bytes();
  Checkpoint checkpoint =
      parse_manifest(std::string(reinterpret_cast<const char*>(text.data()), text.size()), manifest_path);
  checkpoint.folder = folder;
  const auto named = parse_checkpoint_name(last_name(folder));
  if (named && *named != checkpoint.step) {
    throw CheckpointError(
        fmt::format("{}: renamed or copied: the folder's name says step {}, its manifest step {}; give the folder its "
                    "name {} back, or remove it",
                    folder, *named, checkpoint.step, checkpoint_name(checkpoint.step)));
  }
  return checkpoint;
}

Checkpoint open_checkpoint(const std::string& folder) {
  Checkpoint checkpoint = read_manifest(folder);
  for (const CheckpointFile& expected : checkpoint.files) {
    const MappedFile file = map_file(folder + "/" + expected.name);
    if (file.bytes().size() != expected.size_bytes) {
      throw CheckpointError(fmt::format("{}: damaged: expected {} bytes, found {}", file.path(), expected.size_bytes,
                                        file.bytes().size()));
    }
    if (const std::string found = xxh3_128_hex(file.bytes()); found != expected.xxh3_128) {
      throw CheckpointError(
          fmt::format("{}: damaged: expected XXH3-128 {}, found {}", file.path(), expected.xxh3_128, found));
    }
  }
  return checkpoint;
}

}  // namespace mantissa
