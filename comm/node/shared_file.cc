#include "comm/node/shared_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "comm/node/address_range.h"
#include "core/base/error.h"

namespace mantissa {
namespace {

[[noreturn]] void fail(const char* action, size_t bytes, int error = errno) {
  throw CommError(
      fmt::format("{} of {} bytes of shared memory: {}", action, bytes, std::generic_category().message(error)));
}

// Growing a file beyond the limit would not fail but end the process (SIGXFSZ).
void require_file_size(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    throw CommError(
        fmt::format("files may have {} bytes here (ulimit -f), shared memory needs {}", limit.rlim_cur, bytes));
  }
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

void map(int descriptor, size_t bytes, std::byte* at) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) == MAP_FAILED) {
    const int error = errno;
    // What was there may be gone: others must not get the addresses while the range counts on them.
    mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fail("mapping", bytes, error);
  }
  if (bytes >= kHugePageBytes) madvise(at, bytes, MADV_HUGEPAGE);  // a hint
}

}  // namespace

SharedFile::SharedFile(size_t bytes, std::byte* at) {
  require_file_size(bytes);
  Descriptor file(memfd_create("mantissa", MFD_CLOEXEC));
  if (file.get() < 0) fail("creation", bytes);
  struct stat status {};
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 || fstat(file.get(), &status) != 0) fail("sizing", bytes);
  map(file.get(), bytes, at);
  ticket_ = {.process = getpid(),
             .descriptor = file.release(),
             .device = status.st_dev,
             .inode = status.st_ino,
             .bytes = bytes};
}

SharedFile::~SharedFile() { close(ticket_.descriptor); }

void map_shared_file(const SharedFile::Ticket& ticket, std::byte* at) {
  // Looked at before it is opened: where process numbers have another meaning this is anything.
  const std::string path = fmt::format("/proc/{}/fd/{}", ticket.process, ticket.descriptor);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) fail("opening", ticket.bytes);
  if (status.st_dev != ticket.device || status.st_ino != ticket.inode) {
    throw CommError(
        fmt::format("process {} is another one here than for the rank that names it: each of them seems to "
                    "have a container of its own",
                    ticket.process));
  }
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) fail("opening", ticket.bytes);
  map(file.get(), ticket.bytes, at);
}

}  // namespace mantissa
