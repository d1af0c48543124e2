#include "core/io/checkpoint_store.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "core/base/check.h"
#include "core/io/checkpoint_manifest.h"
#include "core/io/checkpoint_name.h"
#include "core/io/posix_file.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial";  // being written
constexpr std::string_view kReplaced =
    ".replaced";  // the older of two checkpoints of one step, until the newer is in place
constexpr std::string_view kDoomed = ".doomed";  // being removed

// What commit() and prune() cannot read they leave alone; latest_valid() tells of it at the next start.
void ignore(const CheckpointError&) {}

std::vector<int64_t> steps_with_suffix(const std::string& root, std::string_view suffix) {
  std::vector<int64_t> steps;
  std::error_code error;  // a root that is not there yet has no checkpoints
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (const auto step = parse_checkpoint_name(it->path().filename().string(), suffix)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

}  // namespace

CheckpointStore::CheckpointStore(std::string root, CheckpointStoreOptions options)
    : root_(std::move(root)), options_(std::move(options)) {
  MANTISSA_CHECK(options_.warn != nullptr, "[checkpoint] a place for warnings is required");
  MANTISSA_CHECK(options_.keep_last >= 0, "[checkpoint] keep_last must be >= 0, got {}", options_.keep_last);
}

std::string CheckpointStore::folder(int64_t step) const { return root_ + "/" + checkpoint_name(step); }

std::string CheckpointStore::partial_folder(int64_t step) const { return folder(step) + std::string(kPartial); }

void CheckpointStore::recover() {
  for (const std::string_view suffix : {kPartial, kDoomed}) {
    for (const int64_t step : steps_with_suffix(root_, suffix)) {
      const std::string leftover = folder(step) + std::string(suffix);
      std::error_code error;
      fs::remove_all(leftover, error);
      if (error) options_.warn(fmt::format("{}: cannot remove what a killed run left: {}", leftover, error.message()));
    }
  }
  for (const int64_t step : steps_with_suffix(root_, kReplaced)) {
    const std::string replaced = folder(step) + std::string(kReplaced);
    std::error_code error;
    if (fs::exists(folder(step), error)) {
      fs::remove_all(replaced, error);
    } else {
      fs::rename(replaced, folder(step), error);  // killed between the two renames of replace()
    }
    if (error)
      options_.warn(fmt::format("{}: cannot finish an interrupted replacement: {}", replaced, error.message()));
  }
}

std::string CheckpointStore::begin(int64_t step) {
  const std::string partial = partial_folder(step);
  std::error_code error;
  fs::remove_all(partial, error);
  if (!error) fs::create_directories(partial, error);
  if (error) throw CheckpointError(fmt::format("{}: cannot make the folder: {}", partial, error.message()));
  return partial;
}

void CheckpointStore::abandon(int64_t step) noexcept {
  std::error_code error;
  fs::remove_all(partial_folder(step), error);  // what stays is removed by recover() or begin()
}

void CheckpointStore::commit(int64_t step, const std::string& model_fingerprint,
                             const std::vector<CheckpointFile>& files, const nlohmann::json& state) {
  const std::string partial = partial_folder(step);
  try {
    const std::vector<Checkpoint> earlier = manifests(ignore);
    const int64_t save = earlier.empty() ? 1 : earlier.front().save + 1;
    const std::string manifest = write_manifest({partial, step, save, model_fingerprint, files, state});
    CheckpointFileWriter writer(partial, kManifestName);
    writer.write(std::as_bytes(std::span(manifest)));
    writer.close();
    sync_folder(partial);
    replace(step);
  } catch (...) {
    abandon(step);
    throw;
  }
  prune();
}

void CheckpointStore::replace(int64_t step) {
  const std::string target = folder(step), replaced = target + std::string(kReplaced);
  std::error_code error;
  const bool exists = fs::exists(target, error);
  if (exists) {  // a run that was resumed from before this step reaches it again
    fs::remove_all(replaced, error);
    rename_path(target, replaced);
  }
  try {
    rename_path(partial_folder(step), target);
  } catch (...) {
    if (exists) fs::rename(replaced, target, error);
    throw;
  }
  sync_folder(root_);
  if (exists) fs::remove_all(replaced, error);  // what stays is removed by recover()
}

void CheckpointStore::prune() {
  if (options_.keep_last == 0) return;
  const std::vector<Checkpoint> all = manifests(ignore);
  for (size_t index = static_cast<size_t>(options_.keep_last); index < all.size(); ++index) {
    // Renamed first, so that a half-removed folder never stands under a valid name.
    const std::string &old = all[index].folder, doomed = old + std::string(kDoomed);
    std::error_code error;
    fs::rename(old, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    if (error) options_.warn(fmt::format("{}: cannot remove the old checkpoint: {}", old, error.message()));
  }
}

std::vector<int64_t> CheckpointStore::steps() const { return steps_with_suffix(root_, ""); }

std::vector<Checkpoint> CheckpointStore::manifests(
    const std::function<void(const CheckpointError&)>& unreadable) const {
  std::vector<Checkpoint> found;
  for (const int64_t step : steps()) {
    try {
      found.push_back(read_manifest(folder(step)));
    } catch (const CheckpointError& error) {
      unreadable(error);
    }
  }
  // Equal numbers only where a checkpoint was copied in from another run.
  std::sort(found.begin(), found.end(), [](const Checkpoint& a, const Checkpoint& b) {
    return std::tie(a.save, a.step) > std::tie(b.save, b.step);
  });
  return found;
}

std::optional<Checkpoint> CheckpointStore::latest_valid() const {
  const auto skip = [this](const CheckpointError& error) {
    options_.warn(fmt::format("skipping a checkpoint: {}", error.what()));
  };
  for (const Checkpoint& candidate : manifests(skip)) {
    try {
      return open_checkpoint(candidate.folder);
    } catch (const CheckpointError& error) {
      skip(error);
    }
  }
  return std::nullopt;
}

}  // namespace mantissa
