#include "comm/node/node_exchange.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "core/base/round_up.h"
#include "core/base/thread_team.h"

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
  require<CommError>(status.st_dev == ticket.device && status.st_ino == ticket.inode,
                     "process {} is another one here than for the rank that names it: each rank seems to have a "
                     "container of its own",
                     ticket.process);
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

// One thread's copy: large against the start of a team, small against a row of a gradient bucket.
constexpr size_t kPieceBytes = size_t{256} << 10;

void copy_bytes(const std::byte* from, std::byte* to, size_t bytes) {
  const size_t pieces = divide_up(bytes, kPieceBytes);
  parallel_for(static_cast<int64_t>(pieces), [&](int64_t piece) {
    const size_t begin = static_cast<size_t>(piece) * kPieceBytes;
    std::memcpy(to + begin, from + begin, std::min(kPieceBytes, bytes - begin));
  });
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
      require<CommError>(
          theirs.bytes == bytes,
          "rank {} of this node asks for {} bytes of shared memory, rank {} for {}: all ranks must ask for the same",
          rank, theirs.bytes, node.rank, bytes);
      map_file_of_other(theirs, block->of_rank(rank));
    }
  });
  return reason.empty() ? block : nullptr;
}

// The board of a node's ranks: marks buffers as ready and counts their readers.
//
// Collectives are numbered alike on all ranks. Each rank has a ring of places; number n takes place n mod kPlaces once
// all others have read the previous post there. A post is written before its `ready` (release) and read after it
// (acquire), and so are the buffer's bytes. A reader counts itself after its last read of the buffer (release); the
// owner writes the buffer after it has seen the count (acquire). Lock-free atomics work between processes.
class NodeBoard {
  struct alignas(64) Place {
    std::atomic<uint64_t> ready;  // number + 1 of the last posted collective; 0: none
    std::atomic<uint32_t> reads;  // of that post
    NodePost post;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

 public:
  static constexpr size_t kBytes = NodeExchanges::kPlaces * sizeof(Place);  // each rank's part of the board's memory

  // `memory`: zeroed, of kBytes, used for nothing else.
  NodeBoard(std::shared_ptr<NodeBlock> memory, const NodeRanks& node)
      : memory_(std::move(memory)), rank_(node.rank), readers_(static_cast<uint32_t>(node.size - 1)) {}

  // Offers a buffer as this rank's for collective `number`. False if the place is still being read.
  bool post(uint64_t number, const NodePost& post) {
    Place& mine = place(number, rank_);
    const bool fresh = mine.ready.load(std::memory_order_relaxed) == 0;
    if (!fresh && mine.reads.load(std::memory_order_acquire) != readers_) return false;
    mine.post = post;
    mine.reads.store(0, std::memory_order_relaxed);
    mine.ready.store(number + 1, std::memory_order_release);
    return true;
  }

  // The post of `rank` for collective `number`; null if there is none yet. Stays until read() is called.
  const NodePost* find(uint64_t number, int rank) const {
    const Place& theirs = place(number, rank);
    const uint64_t ready = theirs.ready.load(std::memory_order_acquire);
    require<CommError>(
        ready <= number + 1,
        "rank {} of this node is at collective {} and has offered nothing to read for collective {}: all ranks of a "
        "node must call the same collectives, with operands in shared memory on all of them or on none",
        rank, ready - 1, number);
    return ready == number + 1 ? &theirs.post : nullptr;
  }

  // This rank has read what it needs of it.
  void read(uint64_t number, int rank) { place(number, rank).reads.fetch_add(1, std::memory_order_release); }

  // Whether all others have read this rank's post for collective `number`.
  bool is_read_by_all(uint64_t number) const {
    const Place& mine = place(number, rank_);
    const bool later = mine.ready.load(std::memory_order_relaxed) > number + 1;  // which presupposes it
    return later || mine.reads.load(std::memory_order_acquire) == readers_;
  }

 private:
  Place& place(uint64_t number, int rank) const {
    // Zeroed memory holds such objects: they are made of integers.
    return std::launder(reinterpret_cast<Place*>(memory_->of_rank(rank)))[number % NodeExchanges::kPlaces];
  }

  std::shared_ptr<NodeBlock> memory_;
  int rank_;
  uint32_t readers_;
};

NodeExchangeRequest barrier_request(const NodeRanks& node) {
  NodeExchangeRequest request{.kind = NodeExchangeKind::kBarrier};
  for (int rank = 0; rank < node.size; ++rank) {
    if (rank != node.rank) request.rows.push_back({.source = rank});
  }
  return request;
}

NodeExchanges::NodeExchanges(NodeRanks node) : node_(std::move(node)) {
  auto memory = NodeBlock::share(node_, NodeBoard::kBytes, failure_);
  if (memory != nullptr) board_ = std::make_shared<NodeBoard>(std::move(memory), node_);
}

std::shared_ptr<Storage> NodeExchanges::allocate(size_t bytes) {
  if (board_ == nullptr || bytes == 0) return nullptr;
  std::shared_ptr<NodeBlock> memory = NodeBlock::share(node_, bytes, failure_);
  if (memory == nullptr) return nullptr;
  blocks_.push_back(memory);
  std::byte* const mine = memory->of_rank(node_.rank);
  return std::make_shared<Storage>(mine, bytes, Device{}, [memory]() mutable { memory.reset(); });
}

SharedRows NodeExchanges::rows_of_all(const Tensor& mine) const {
  const Place place = locate(mine.raw(), mine.size_bytes());
  if (place.memory == nullptr) return {};
  const auto storage = std::make_shared<Storage>(place.memory->of_rank(0), place.memory->range_bytes(), Device{},
                                                 [memory = place.memory]() mutable { memory.reset(); });
  const auto distance = static_cast<int64_t>(place.memory->distance_bytes());
  return {.rows = Tensor(storage, mine.dtype(), Shape{node_.size, mine.numel()}, place.post.offset_bytes),
          .stride = distance / size_bytes(mine.dtype())};
}

NodeExchanges::Place NodeExchanges::locate(const std::byte* data, size_t bytes) const {
  for (size_t number = 0; number < blocks_.size(); ++number) {
    std::shared_ptr<NodeBlock> memory = blocks_[number].lock();
    if (memory == nullptr) continue;
    if (data < memory->of_rank(0) || data >= memory->of_rank(0) + memory->range_bytes()) continue;
    const std::byte* const begin = memory->of_rank(node_.rank);
    MANTISSA_CHECK(data >= begin && data + bytes <= begin + memory->bytes(),
                   "[node_exchange] {} bytes of another rank's memory, or beyond this rank's {}: they can be read and "
                   "written here, not exchanged",
                   bytes, memory->bytes());
    return {.memory = std::move(memory),
            .post = {.block = static_cast<uint32_t>(number), .offset_bytes = static_cast<uint64_t>(data - begin)}};
  }
  return {};
}

uint64_t NodeExchanges::start(NodeExchangeRequest request) {
  Exchange& exchange = exchanges_.emplace_back();
  exchange.number = next_++;
  if (request.offer != nullptr) {
    const Place place = locate(request.offer, request.offer_bytes);
    MANTISSA_CHECK(place.memory != nullptr, "[node_exchange] the buffer that a rank offers must lie in node memory");
    exchange.post = place.post;
  }
  exchange.post.kind = static_cast<uint32_t>(request.kind);
  exchange.post.bytes = request.offer_bytes;
  exchange.request = std::move(request);
  const uint64_t number = exchange.number;
  advance();
  return number;
}

void NodeExchanges::advance() {
  // In order: a place freed in between belongs to the earlier number, not to a later number.
  bool posts = true;
  for (auto exchange = exchanges_.begin(); exchange != exchanges_.end();) {
    const bool waits_to_post = exchange->request.posts() && !exchange->posted;
    if (waits_to_post && posts) posts = exchange->posted = board_->post(exchange->number, exchange->post);
    exchange = advance(*exchange) ? exchanges_.erase(exchange) : exchange + 1;
  }
}

bool NodeExchanges::advance(Exchange& exchange) {
  NodeExchangeRequest& request = exchange.request;
  std::erase_if(request.rows, [&](const NodeExchangeRequest::Row& row) {
    const NodePost* const post = board_->find(exchange.number, row.source);
    if (post == nullptr) return false;
    copy(exchange, row, *post);
    board_->read(exchange.number, row.source);
    return true;
  });
  if (!request.rows.empty() || (request.posts() && !exchange.posted)) return false;
  return request.offer == nullptr || board_->is_read_by_all(exchange.number);
}

void NodeExchanges::copy(const Exchange& exchange, const NodeExchangeRequest::Row& row, const NodePost& post) const {
  const NodeExchangeRequest& request = exchange.request;
  require<CommError>(
      post.kind == exchange.post.kind && post.bytes == exchange.post.bytes,
      "ranks of this node disagree about collective {}: kind {} with {} bytes on rank {}, kind {} with {} bytes on "
      "rank {}",
      exchange.number, exchange.post.kind, exchange.post.bytes, node_.rank, post.kind, post.bytes, row.source);
  if (request.kind == NodeExchangeKind::kBarrier) return;
  const auto memory = post.block < blocks_.size() ? blocks_[post.block].lock() : nullptr;
  require<CommError>(memory != nullptr, "rank {} of this node sends from memory that rank {} has given back",
                     row.source, node_.rank);
  copy_bytes(memory->of_rank(row.source) + post.offset_bytes + row.offset_bytes, row.to, request.row_bytes);
}

std::vector<Tensor> NodeExchanges::buffers() const {
  std::vector<Tensor> buffers;
  for (const Exchange& exchange : exchanges_) {
    buffers.insert(buffers.end(), exchange.request.buffers.begin(), exchange.request.buffers.end());
  }
  return buffers;
}

}  // namespace mantissa
