#include "core/io/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <tuple>

#include "core/base/check.h"
#include "core/base/log.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxWriteBytes = size_t{1} << 30;  // Linux writes at most about 2 GiB per call

// Names: step-00000100, with a suffix while the folder is not, or no longer, a checkpoint.
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPartial = ".partial";  // being written
constexpr std::string_view kReplaced =
    ".replaced";                                 // older of two checkpoints of one step, until the newer is in place
constexpr std::string_view kDoomed = ".doomed";  // being removed

// The manifest's last line holds the hash of everything before it, so that any changed byte of it is noticed as well.
constexpr int kFormatVersion = 2;  // 2: with the order of saves
constexpr int64_t kMostSaves = 1'000'000'000'000'000;
constexpr std::string_view kHead = "{\"manifest\": ";
constexpr std::string_view kHashLine = ",\n\"xxh3_128\": \"";
constexpr std::string_view kTail = "\"}\n";
constexpr size_t kHashDigits = 32;

[[noreturn]] void fail_io(const std::string& path, const std::string& operation, int error) {
  throw CheckpointError(fmt::format("{}: cannot {}: {}", path, operation, std::generic_category().message(error)));
}

// Puts a folder's entries on the disk. Without it, a power cut may undo a rename.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_io(folder, "open the folder", errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) fail_io(folder, "sync the folder", error);
}

void rename_path(const std::string& from, const std::string& to) {
  const int fault = file_fault(FileOperation::kRename, from);
  if (fault != 0 || std::rename(from.c_str(), to.c_str()) != 0) {
    fail_io(from, "rename it to " + to, fault != 0 ? fault : errno);
  }
}

std::string to_hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }
std::string hash_of(std::string_view text) { return xxh3_128_hex(std::as_bytes(std::span(text))); }

std::string name_of(int64_t step) { return fmt::format("{}{:08d}", kPrefix, step); }

// The step of a name such as step-00000100 followed by `suffix`; nothing for any other name.
std::optional<int64_t> step_of(std::string_view name, std::string_view suffix = "") {
  if (name.size() < kPrefix.size() + suffix.size() || !name.starts_with(kPrefix) || !name.ends_with(suffix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return step;
}

// The steps of the folders with this suffix, highest first. A root that does not exist yet has no steps.
std::vector<int64_t> steps_with_suffix(const std::string& root, std::string_view suffix) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (const auto step = step_of(it->path().filename().string(), suffix)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

// commit() and prune() leave unreadable checkpoints alone; latest_valid() warns about them at the next start.
void ignore(const CheckpointError&) {}

void check_finite(const json& value, const std::string& path) {
  if (value.is_number_float()) {
    MANTISSA_CHECK(std::isfinite(value.get<double>()),
                   "[checkpoint] the state at {} is not finite, JSON cannot hold it", path);
  }
  if (!value.is_structured()) return;
  for (const auto& [key, item] : value.items()) check_finite(item, fmt::format("{}/{}", path, key));
}

// ContractError if the state holds NaN or Inf, which JSON would silently turn into null.
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
  const std::string text = std::string(kHead) + manifest.dump(2);
  return fmt::format("{}{}{}{}", text, kHashLine, hash_of(text), kTail);
}

// CheckpointError naming `path` if the text is not what write_manifest() made.
Checkpoint parse_manifest(std::string_view text, const std::string& path) {
  const size_t trailer = kHashLine.size() + kHashDigits + kTail.size();
  require<CheckpointError>(text.size() >= kHead.size() + trailer,
                           "{}: truncated: a manifest has at least {} bytes, got {}", path, kHead.size() + trailer,
                           text.size());
  const std::string_view body = text.substr(0, text.size() - trailer), end = text.substr(body.size());
  const std::string_view stored = end.substr(kHashLine.size(), kHashDigits);
  require<CheckpointError>(body.starts_with(kHead) && end.starts_with(kHashLine) && end.ends_with(kTail),
                           "{}: damaged: the manifest's first or last line is not as written", path);
  const std::string found = hash_of(body);
  require<CheckpointError>(found == stored, "{}: damaged: expected XXH3-128 {}, found {}", path, stored, found);
  try {
    const json manifest = json::parse(body.substr(kHead.size()));
    const int version = manifest.at("format_version").get<int>();
    require<CheckpointError>(version == kFormatVersion,
                             "{}: expected format version {}, got {}: another version of this program wrote it", path,
                             kFormatVersion, version);
    Checkpoint checkpoint{.step = manifest.at("step").get<int64_t>(),
                          .save = manifest.at("save").get<int64_t>(),
                          .model_fingerprint = manifest.at("model_fingerprint").get<std::string>(),
                          .state = manifest.at("state")};
    // The next save gets the next number.
    require<CheckpointError>(checkpoint.save >= 0 && checkpoint.save < kMostSaves,
                             "{}: damaged: expected a 'save' from 0 to {}, got {}", path, kMostSaves, checkpoint.save);
    for (const json& file : manifest.at("files")) {
      checkpoint.files.push_back({file.at("name").get<std::string>(), file.at("size_bytes").get<uint64_t>(),
                                  file.at("xxh3_128").get<std::string>()});
    }
    return checkpoint;
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a manifest: {}", path, error.what()));
  }
}

}  // namespace

std::string xxh3_128_hex(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

// --- files

CheckpointFileWriter::CheckpointFileWriter(const std::string& folder, const std::string& name)
    : path_(folder + "/" + name), hash_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(hash_.get());
  file_.name = name;
  MANTISSA_CHECK(!name.empty() && name.find('/') == std::string::npos, "[checkpoint] '{}' is not a plain file name",
                 name);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create the file", errno);
}

CheckpointFileWriter::~CheckpointFileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void CheckpointFileWriter::fail(const char* operation, int error) const {
  fail_io(path_, fmt::format("{} after {} bytes", operation, file_.size_bytes), error);
}

void CheckpointFileWriter::write(std::span<const std::byte> bytes) {
  MANTISSA_CHECK(descriptor_ >= 0, "[checkpoint] {} is closed", path_);
  XXH3_128bits_update(hash_.get(), bytes.data(), bytes.size());
  while (!bytes.empty()) {
    size_t count = std::min(bytes.size(), kMaxWriteBytes);
    if (const int fault = file_fault(FileOperation::kWrite, path_, count); fault != 0) fail("write", fault);
    const ssize_t written = ::write(descriptor_, bytes.data(), count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : EIO);
    file_.size_bytes += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

CheckpointFile CheckpointFileWriter::close() {
  MANTISSA_CHECK(descriptor_ >= 0, "[checkpoint] {} is closed", path_);
  if (const int fault = file_fault(FileOperation::kSync, path_); fault != 0) fail("sync the file", fault);
  if (::fsync(descriptor_) != 0) fail("sync the file", errno);
  if (const int fault = file_fault(FileOperation::kClose, path_); fault != 0) fail("close the file", fault);
  // Network file systems report a full quota here. The descriptor is gone either way.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close the file", errno);
  file_.xxh3_128 = to_hex(XXH3_128bits_digest(hash_.get()));
  return file_;
}

// --- reading

Checkpoint read_manifest(const std::string& folder) {
  const MappedFile manifest = map_file<CheckpointError>(folder + "/" + kManifestName);
  const auto text = manifest.bytes();
  Checkpoint checkpoint = parse_manifest({reinterpret_cast<const char*>(text.data()), text.size()}, manifest.path());
  checkpoint.folder = folder;
  const fs::path path(folder);  // a slash may follow its last name
  const auto named = step_of((path.has_filename() ? path : path.parent_path()).filename().string());
  require<CheckpointError>(
      named.value_or(checkpoint.step) == checkpoint.step,
      "{}: renamed or copied: the folder is named after step {}, its manifest says step {}; rename "
      "the folder to {}, or remove it",
      folder, named.value_or(0), checkpoint.step, name_of(checkpoint.step));
  return checkpoint;
}

void verify_file(const std::string& folder, const CheckpointFile& expected) {
  const MappedFile file = map_file<CheckpointError>(folder + "/" + expected.name);
  require<CheckpointError>(file.bytes().size() == expected.size_bytes, "{}: damaged: expected {} bytes, found {}",
                           file.path(), expected.size_bytes, file.bytes().size());
  const std::string found = xxh3_128_hex(file.bytes());
  require<CheckpointError>(found == expected.xxh3_128, "{}: damaged: expected XXH3-128 {}, found {}", file.path(),
                           expected.xxh3_128, found);
}

Checkpoint open_checkpoint(const std::string& folder) {
  Checkpoint checkpoint = read_manifest(folder);
  for (const CheckpointFile& file : checkpoint.files) verify_file(folder, file);
  return checkpoint;
}

// --- the store

CheckpointStore::CheckpointStore(std::string root, CheckpointStoreOptions options)
    : root_(std::move(root)), options_(std::move(options)) {
  if (!options_.warn) options_.warn = [](const std::string& text) { log_warn("{}", text); };
  MANTISSA_CHECK(options_.keep_last >= 0, "[checkpoint] keep_last must be >= 0, got {}", options_.keep_last);
}

std::string CheckpointStore::folder(int64_t step) const { return root_ + "/" + name_of(step); }
std::string CheckpointStore::partial_folder(int64_t step) const { return folder(step) + std::string(kPartial); }
std::vector<int64_t> CheckpointStore::steps() const { return steps_with_suffix(root_, ""); }

void CheckpointStore::recover() {
  std::error_code error;
  for (const std::string_view suffix : {kPartial, kDoomed}) {
    for (const int64_t step : steps_with_suffix(root_, suffix)) {
      const std::string leftover = folder(step) + std::string(suffix);
      fs::remove_all(leftover, error);
      if (error)
        options_.warn(fmt::format("{}: cannot remove this rest of a killed run: {}", leftover, error.message()));
    }
  }
  for (const int64_t step : steps_with_suffix(root_, kReplaced)) {
    const std::string replaced = folder(step) + std::string(kReplaced);
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
  std::string partial = partial_folder(step);
  std::error_code error;
  fs::remove_all(partial, error);
  if (!error) fs::create_directories(partial, error);
  if (error) throw CheckpointError(fmt::format("{}: cannot make the folder: {}", partial, error.message()));
  return partial;
}

void CheckpointStore::abandon(int64_t step) noexcept {
  std::error_code error;
  fs::remove_all(partial_folder(step), error);  // recover() or begin() removes what stays
}

void CheckpointStore::commit(int64_t step, const std::string& model_fingerprint,
                             const std::vector<CheckpointFile>& files, const json& state) {
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
  if (exists) fs::remove_all(replaced, error);  // recover() removes what stays
}

void CheckpointStore::prune() {
  if (options_.keep_last == 0) return;
  const std::vector<Checkpoint> all = manifests(ignore);
  for (size_t index = static_cast<size_t>(options_.keep_last); index < all.size(); ++index) {
    if (std::ranges::count(protected_steps_, all[index].step) > 0) continue;
    // Renamed first, so that a half-removed folder never has a valid name.
    const std::string &old = all[index].folder, doomed = old + std::string(kDoomed);
    std::error_code error;
    fs::rename(old, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    if (error) options_.warn(fmt::format("{}: cannot remove the old checkpoint: {}", old, error.message()));
  }
}

std::string checkpoint_root(const std::string& run_dir) { return run_dir + "/checkpoints"; }

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
  // Equal save numbers occur only if a checkpoint was copied in from another run.
  std::sort(found.begin(), found.end(), [](const Checkpoint& a, const Checkpoint& b) {
    return std::tie(a.save, a.step) > std::tie(b.save, b.step);
  });
  return found;
}

std::optional<Checkpoint> CheckpointStore::last_saved(
    const std::function<void(const CheckpointError&)>& unreadable) const {
  std::vector<Checkpoint> found = manifests(unreadable);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::optional<Checkpoint> CheckpointStore::latest_valid(const std::function<void(const Checkpoint&)>& examine) const {
  const auto skip = [this](const CheckpointError& error) {
    options_.warn(fmt::format("skipping a checkpoint: {}", error.what()));
  };
  for (const Checkpoint& candidate : manifests(skip)) {
    try {
      Checkpoint checkpoint = open_checkpoint(candidate.folder);
      if (examine) examine(checkpoint);
      return checkpoint;
    } catch (const CheckpointError& error) {
      skip(error);
    }
  }
  return std::nullopt;
}

}  // namespace mantissa
