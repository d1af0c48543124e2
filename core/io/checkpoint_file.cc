#include "core/io/checkpoint_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>

#include "core/base/check.h"
#include "core/io/posix_file.h"

namespace mantissa {
namespace {

// Linux writes at most about 2 GiB per call.
constexpr size_t kMaxWriteBytes = size_t{1} << 30;

std::string to_hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

struct CheckpointFileWriter::Hash {
  XXH3_state_t* state = XXH3_createState();
  Hash() { XXH3_128bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
};

CheckpointFileWriter::CheckpointFileWriter(const std::string& folder, const std::string& name)
    : path_(folder + "/" + name), hash_(std::make_unique<Hash>()) {
  MANTISSA_CHECK(!name.empty() && name.find('/') == std::string::npos, "[checkpoint] '{}' is not a plain file name",
                 name);
  file_.name = name;
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create the file", errno);
}

CheckpointFileWriter::~CheckpointFileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void CheckpointFileWriter::fail(const char* operation, int error) const {
  fail_checkpoint_io(path_, fmt::format("{} after {} bytes", operation, file_.size_bytes), error);
}

void CheckpointFileWriter::write(std::span<const std::byte> bytes) {
  MANTISSA_CHECK(descriptor_ >= 0, "[checkpoint] {} is closed", path_);
  XXH3_128bits_update(hash_->state, bytes.data(), bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : EIO);
    file_.size_bytes += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

CheckpointFile CheckpointFileWriter::close() {
  MANTISSA_CHECK(descriptor_ >= 0, "[checkpoint] {} is closed", path_);
  if (::fsync(descriptor_) != 0) fail("sync the file", errno);
  // Network file systems report a full quota here. The descriptor is gone either way.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close the file", errno);
  file_.xxh3_128 = to_hex(XXH3_128bits_digest(hash_->state));
  return file_;
}

std::string xxh3_128_hex(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace mantissa
