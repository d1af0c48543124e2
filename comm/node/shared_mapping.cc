#include "comm/node/shared_mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

[[noreturn]] void fail(const char* action, size_t bytes) {
  throw CommError(
      fmt::format("{} of {} bytes of shared memory: {}", action, bytes, std::generic_category().message(errno)));
}

// Growing a file beyond the limit would not fail but end the process (SIGXFSZ).
void require_file_size(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    throw CommError(
        fmt::format("files may have {} bytes here (ulimit -f), shared memory needs {}", limit.rlim_cur, bytes));
  }
}

}  // namespace

bool shared_memory_has_huge_pages() {
  // One word of the line stands in brackets: the one that holds.
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  return line.find('[') != std::string::npos && line.find("[never]") == std::string::npos &&
         line.find("[deny]") == std::string::npos;
}

SharedMapping SharedMapping::create(size_t bytes) {
  require_file_size(bytes);
  SharedMapping mapping;
  Ticket& ticket = mapping.ticket_;
  ticket.bytes = bytes;
  ticket.process = getpid();
  ticket.descriptor = memfd_create("mantissa", MFD_CLOEXEC);
  if (ticket.descriptor < 0) fail("creation", bytes);
  struct stat status {};
  if (ftruncate(ticket.descriptor, static_cast<off_t>(bytes)) != 0 || fstat(ticket.descriptor, &status) != 0) {
    fail("sizing", bytes);
  }
  ticket.device = status.st_dev;
  ticket.inode = status.st_ino;
  mapping.map(ticket.descriptor);
  return mapping;
}

SharedMapping SharedMapping::open(const Ticket& ticket) {
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
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail("opening", ticket.bytes);
  SharedMapping mapping;
  mapping.ticket_ = ticket;
  mapping.ticket_.descriptor = descriptor;
  mapping.map(descriptor);
  mapping.seal();
  return mapping;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(ticket_, other.ticket_);
  return *this;
}

SharedMapping::~SharedMapping() {
  seal();
  if (data_ != nullptr) munmap(data_, ticket_.bytes);
}

void SharedMapping::seal() {
  if (ticket_.descriptor >= 0) close(std::exchange(ticket_.descriptor, -1));
}

void SharedMapping::map(int descriptor) {
  void* const data = mmap(nullptr, ticket_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) fail("mapping", ticket_.bytes);
  data_ = static_cast<std::byte*>(data);
  if (ticket_.bytes >= kHugePageBytes) madvise(data, ticket_.bytes, MADV_HUGEPAGE);  // a hint
}

}  // namespace mantissa
