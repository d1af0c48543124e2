#include "core/io/posix_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/base/error.h"

namespace mantissa {

void fail_checkpoint_io(const std::string& path, const std::string& operation, int error) {
  throw CheckpointError(fmt::format("{}: cannot {}: {}", path, operation, std::generic_category().message(error)));
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_checkpoint_io(folder, "open the folder", errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) fail_checkpoint_io(folder, "sync the folder", error);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_checkpoint_io(from, "rename it to " + to, errno);
}

}  // namespace mantissa
