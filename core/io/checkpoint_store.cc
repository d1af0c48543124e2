#include "core/io/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "core/base/check.h"
#include "core/io/checkpoint_manifest.h"
#include "core/io/posix_file.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPartial = ".partial";  // being written
constexpr std::string_view kReplaced =
    ".replaced";  // the older of two checkpoints of one step, until the newer is in place
constexpr std::string_view kDoomed = ".doomed";  // being removed

// The step of a name such as step-00000100 followed by `suffix`.
std::optional<int64_t> parse_step(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return step;
}

std::vector<int64_t> steps_with_suffix(const std::string& root, std::string_view suffix) {
  std::vector<int64_t> steps;
  std::error_code error;  // a root that is not there yet has no checkpoints
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (const auto step = parse_step(it->path().filename().string(), suffix)) steps.push_back(*step);
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

std::string CheckpointStore::folder(int64_t step) const { return fmt::format("{}/{}{:08d}", root_, kPrefix, step); }

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
    const std::string manifest = write_manifest({partial, step, model_fingerprint, files, state});
    CheckpointFileWriter writer(partial, kManifestName);
    writer.write(std::as_bytes(std::span(manifest)));
    writer.close();
    sync_folder(partial);
    replace(step);
  } catch (...) {
    abandon(step);
    throw;
  }
  prune(step);
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

void CheckpointStore::prune(int64_t newest_step) {
  if (options_.keep_last == 0) return;
  int kept = 0;
  for (const int64_t step : steps()) {
    // Later steps are those of a run that went another way: not ours to remove.
    if (step > newest_step || ++kept <= options_.keep_last) continue;
    // Renamed first, so that a half-removed folder never stands under a valid name.
    const std::string doomed = folder(step) + std::string(kDoomed);
    std::error_code error;
    fs::rename(folder(step), doomed, error);
    if (!error) fs::remove_all(doomed, error);
    if (error) options_.warn(fmt::format("{}: cannot remove the old checkpoint: {}", folder(step), error.message()));
  }
}

std::vector<int64_t> CheckpointStore::steps() const { return steps_with_suffix(root_, ""); }

std::optional<Checkpoint> CheckpointStore::latest_valid() const {
  for (const int64_t step : steps()) {
    try {
      return open_checkpoint(folder(step));
    } catch (const CheckpointError& error) {
      options_.warn(fmt::format("skipping a checkpoint: {}", error.what()));
    }
  }
  return std::nullopt;
}

}  // namespace mantissa
