// NodeBlock: memory of equal size of every rank of a node, all mapped by each rank, side by side. Data at the same
// place of every rank's piece lies at equal distances.
//
// Each piece is an anonymous file (memfd) of its rank. It has no name, so an abort leaves nothing behind, and it is
// ordinary memory to the kernel, whatever the size of /dev/shm. Others open it through the /proc entry of its rank,
// while this rank keeps its descriptor open. MPI_Win_allocate_shared would use files in /dev/shm, which containers
// often limit to 64 MiB, and a full /dev/shm shows as a bus error at first touch.
#pragma once

#include <sys/types.h>

#include "comm/communicator.h"

namespace mantissa {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// The ranks of a node, and a blocking gather of small records among them. Node memory needs nothing else of a
// transport.
struct NodeRanks {
  int rank = 0;
  int size = 1;
  GatherBytes gather;
};

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
  // is then the first rank's error. Pages are allocated when they are touched, huge ones if the system grants them to
  // shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
  static std::shared_ptr<NodeBlock> share(const NodeRanks& node, size_t bytes, std::string& reason);
  // Unmaps all pieces. The memory goes when all ranks have.
  ~NodeBlock();
  NodeBlock(const NodeBlock&) = delete;
  NodeBlock& operator=(const NodeBlock&) = delete;

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

}  // namespace mantissa
