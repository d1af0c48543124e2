#include "comm/node/node_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

size_t whole_pages(size_t bytes) {
  const size_t page = bytes >= kHugePageBytes ? kHugePageBytes : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return round_up(bytes, page);
}

[[noreturn]] void fail(const char* action, size_t bytes, int error = errno) {
  throw CommError(
      fmt::format("{} of {} bytes of shared memory: {}", action, bytes, std::generic_category().message(error)));
}

// A file that grows beyond the limit would end the process (SIGXFSZ).
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
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

void map(const Descriptor& file, size_t bytes, std::byte* at) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED) {
    const int error = errno;
    // The reservation may be gone: nobody else may get these addresses.
    mmap(at, bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
    fail("mapping", bytes, error);
  }
  if (bytes >= kHugePageBytes) madvise(at, bytes, MADV_HUGEPAGE);  // a hint
}

// Makes and maps this rank's file. Others can open it while the descriptor lives.
std::pair<Descriptor, NodeBlock::Ticket> make_file(size_t bytes, std::byte* at) {
  require_file_size(bytes);
  Descriptor file(memfd_create("mantissa", MFD_CLOEXEC));
  if (file.get() < 0) fail("creation", bytes);
  struct stat status {};
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 || fstat(file.get(), &status) != 0) fail("sizing", bytes);
  map(file, bytes, at);
  const NodeBlock::Ticket ticket{
      .process = getpid(), .descriptor = file.get(), .device = status.st_dev, .inode = status.st_ino, .bytes = bytes};
  return {std::move(file), ticket};
}

void map_file_of_other(const NodeBlock::Ticket& ticket, std::byte* at) {
  // Checked before it is opened: with other process numbers this path may be anything.
  const std::string path = fmt::format("/proc/{}/fd/{}", ticket.process, ticket.descriptor);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) fail("opening", ticket.bytes);
  if (status.st_dev != ticket.device || status.st_ino != ticket.inode) {
    throw CommError(
        fmt::format("process {} is another one here than for the rank that names it: each rank seems to have a "
                    "container of its own",
                    ticket.process));
  }
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) fail("opening", ticket.bytes);
  map(file, ticket.bytes, at);
}

// Runs f on this rank. Returns the first rank's CommError; empty if all ranks succeeded. Collective.
template <typename F>
std::string first_failure(const NodeRanks& node, const F& f) {
  std::string mine;
  try {
    f();
  } catch (const CommError& error) {
    mine = error.what();
  }
  for (const std::vector<std::byte>& failure : gather_varied(node.gather, std::as_bytes(std::span(mine)))) {
    if (!failure.empty()) return {reinterpret_cast<const char*>(failure.data()), failure.size()};
  }
  return "";
}

}  // namespace

NodeBlock::NodeBlock(size_t bytes, const NodeRanks& node)
    : bytes_(bytes),
      distance_bytes_(whole_pages(bytes)),
      range_bytes_(distance_bytes_ * static_cast<size_t>(node.size)),
      reserved_(mmap(nullptr, range_bytes_ + kHugePageBytes, PROT_NONE, kReserved, -1, 0)) {
  if (reserved_ == MAP_FAILED) fail("reservation", range_bytes_);
  void* begin = reserved_;
  size_t space = range_bytes_ + kHugePageBytes;
  data_ = static_cast<std::byte*>(std::align(kHugePageBytes, range_bytes_, begin, space));
}

NodeBlock::~NodeBlock() { munmap(reserved_, range_bytes_ + kHugePageBytes); }

std::shared_ptr<NodeBlock> NodeBlock::share(const NodeRanks& node, size_t bytes, std::string& reason) {
  std::shared_ptr<NodeBlock> block;
  std::optional<std::pair<Descriptor, Ticket>> own;
  reason = first_failure(node, [&] {
    block.reset(new NodeBlock(bytes, node));
    own.emplace(make_file(bytes, block->of_rank(node.rank)));
  });
  if (!reason.empty()) return nullptr;
  const std::vector<Ticket> tickets = gather_records(node.gather, own->second);
  // After this gather all ranks have opened all files.
  reason = first_failure(node, [&] {
    for (int rank = 0; rank < node.size; ++rank) {
      if (rank == node.rank) continue;
      const Ticket& theirs = tickets[static_cast<size_t>(rank)];
      if (theirs.bytes != bytes) {
        throw CommError(
            fmt::format("rank {} of this node asks for {} bytes of shared memory, rank {} for {}: all ranks must ask "
                        "for the same",
                        rank, theirs.bytes, node.rank, bytes));
      }
      map_file_of_other(theirs, block->of_rank(rank));
    }
  });
  return reason.empty() ? block : nullptr;
}

}  // namespace mantissa
