// NodeExchanges: collectives of one rank with the others of its node, by reading each other's memory.
//
// A rank posts its send buffer on a board in shared memory, and copies the rows that it receives straight from the
// other ranks' memory. An exchange is done when this rank has copied its rows and all others have read its buffer.
// Nothing moves by itself: advance() continues all exchanges: others may wait for any. Call it from one thread.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <deque>

#include "comm/communicator.h"

namespace mantissa {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// The ranks of a node, and a blocking gather of small records among them: all that node memory needs of a transport.
struct NodeRanks {
  int rank = 0;
  int size = 1;
  GatherBytes gather;
};

// Memory of equal size of all ranks of a node, mapped by each side by side: same places lie at equal distances.
//
// Each piece is an anonymous file (memfd) of its rank. It has no name, so an abort leaves nothing behind, and it is
// ordinary memory to the kernel, whatever the size of /dev/shm. Others open it through the /proc entry of its rank,
// while this rank keeps its descriptor open. MPI_Win_allocate_shared would use files in /dev/shm, which containers
// often limit to 64 MiB, and a full /dev/shm shows as a bus error at first touch.
class NodeBlock {
 public:
  // How other processes find a rank's file, and check its identity. Plain data.
  struct Ticket {
    pid_t process = 0;
    int descriptor = -1;
    dev_t device = 0;
    ino_t inode = 0;
    size_t bytes = 0;
  };

  // Zeroed memory, `bytes` for each rank. Collective. Null on all ranks if one of them cannot make or map it; `reason`
  // is then the first rank's error. Pages come when touched, huge ones by transparent_hugepage/shmem_enabled.
  static std::shared_ptr<NodeBlock> share(const NodeRanks& node, size_t bytes, std::string& reason);
  // Unmaps all pieces. The memory goes when all ranks have.
  ~NodeBlock();
  NodeBlock& operator=(NodeBlock&&) = delete;

  std::byte* of_rank(int rank) const { return data_ + static_cast<size_t>(rank) * distance_bytes_; }
  size_t bytes() const { return bytes_; }                    // one rank's piece
  size_t distance_bytes() const { return distance_bytes_; }  // from a piece to the next: whole pages
  size_t range_bytes() const { return range_bytes_; }        // all pieces

 private:
  // Reserves addresses for all pieces, without memory, from a boundary of huge pages on.
  NodeBlock(size_t bytes, const NodeRanks& node);

  size_t bytes_, distance_bytes_, range_bytes_;
  void* reserved_;
  std::byte* data_;
};

// A buffer that a rank offers in a collective.
struct NodePost {
  uint32_t kind = 0;          // of collective
  uint32_t block = 0;         // number of the memory in which the buffer lies
  uint64_t offset_bytes = 0;  // in the owner's part of that memory
  uint64_t bytes = 0;
};

// kBarrier copies nothing: when it is done, all ranks have reached it, and data that they wrote before can be read.
enum class NodeExchangeKind : uint32_t { kAllToAll = 1, kAllGather, kBarrier };

struct NodeExchangeRequest {
  // Row at `offset_bytes` of the buffer that rank `source` of the node offers; it is copied to `to`.
  struct Row {
    int source = 0;
    size_t offset_bytes = 0;
    std::byte* to = nullptr;
  };
  NodeExchangeKind kind = NodeExchangeKind::kAllGather;
  std::vector<Tensor> buffers{};     // kept until the exchange is done
  const std::byte* offer = nullptr;  // in the node's memory; null if this rank offers nothing
  size_t offer_bytes = 0;            // the same on all ranks that offer
  size_t row_bytes = 0;
  std::vector<Row> rows{};

  bool posts() const { return offer != nullptr || kind == NodeExchangeKind::kBarrier; }
};

NodeExchangeRequest barrier_request(const NodeRanks& node);

class NodeBoard;

class NodeExchanges {
 public:
  static constexpr uint64_t kPlaces = 64;  // buffers that can be unread at once; further buffers wait

  // Collective.
  explicit NodeExchanges(NodeRanks node);
  const NodeRanks& node() const { return node_; }
  NodeExchanges& operator=(NodeExchanges&&) = delete;

  // Zeroed shared memory, 64-byte aligned. Collective, of one size. Null on all ranks if refused: see failure().
  std::shared_ptr<Storage> allocate(size_t bytes);
  const std::string& failure() const { return failure_; }
  bool shares_memory() const { return board_ != nullptr; }
  // Whether these bytes lie in this rank's part of such memory. ContractError if they lie in another rank's.
  bool holds(const std::byte* data, size_t bytes) const { return locate(data, bytes).memory != nullptr; }
  // All ranks' data at the place that `mine` has in such memory; undefined if `mine` lies elsewhere.
  SharedRows rows_of_all(const Tensor& mine) const;

  // All ranks of the node start the same exchanges in the same order. Returns the exchange's number.
  uint64_t start(NodeExchangeRequest request);
  bool done(uint64_t number) const {
    return std::ranges::none_of(exchanges_, [number](const Exchange& exchange) { return exchange.number == number; });
  }
  // Continues all exchanges without blocking. CommError if the ranks disagree about one.
  void advance();
  std::vector<Tensor> buffers() const;  // of the exchanges in progress

 private:
  // One allocation, as seen by this rank.
  struct Place {
    std::shared_ptr<NodeBlock> memory;
    NodePost post;  // block and offset
  };
  struct Exchange {
    uint64_t number = 0;
    NodeExchangeRequest request;
    NodePost post;
    bool posted = false;
  };

  Place locate(const std::byte* data, size_t bytes) const;
  // Reads the rows that are there; true when the exchange is done.
  bool advance(Exchange& exchange);
  void copy(const Exchange& exchange, const NodeExchangeRequest::Row& row, const NodePost& post) const;

  NodeRanks node_;
  std::string failure_;
  std::shared_ptr<NodeBoard> board_;              // null if memory cannot be shared
  std::vector<std::weak_ptr<NodeBlock>> blocks_;  // by number; gone with the last tensor in them
  std::deque<Exchange> exchanges_;                // in progress, in order
  uint64_t next_ = 0;
};

}  // namespace mantissa
