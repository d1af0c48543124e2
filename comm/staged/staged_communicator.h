// Staged transport: carries a device's tensors over a transport for host memory: GPUs over MPI, several ranks on a GPU.
//
//   copy out (stream) -> the transport's collective (host) -> copy in (stream)
//
// Collectives of host tensors and host records go straight to the transport. A Work is done when the copy in is queued
// on the stream. Nothing moves between calls of test() or wait(): test() a Work now and then, from one thread.
#pragma once

#include "comm/communicator.h"
#include "core/backend/backend.h"

namespace mantissa {

// Both must outlive it, and it must outlive its Works.
std::unique_ptr<Communicator> create_staged_communicator(Communicator& transport, Backend& backend);

// Host memory between a device and a transport, reused from one collective to the next.
class StagingPool {
 public:
  explicit StagingPool(Backend& backend) : backend_(backend) {}  // `backend` must outlive the pool
  // Waits until the device has passed the copies from and to this memory.
  ~StagingPool();
  StagingPool& operator=(StagingPool&&) = delete;

  std::shared_ptr<Storage> take(size_t bytes);  // memory of at least `bytes` that nothing uses
  // Reused when the device has passed `last_copy`, if any, and no transport with an abandoned collective holds it.
  void give_back(std::shared_ptr<Storage> memory, std::unique_ptr<Event> last_copy);

  size_t blocks() const { return idle_.size(); }  // given back, whether or not they can be taken already

 private:
  struct Block {
    std::shared_ptr<Storage> memory;
    std::unique_ptr<Event> last_copy;
  };

  static bool passed(Block& block);

  Backend& backend_;
  std::vector<Block> idle_;  // by size
};

}  // namespace mantissa
