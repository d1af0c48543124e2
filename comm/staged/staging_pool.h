// StagingPool: host memory between a device and a transport, reused from one collective to the next.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/backend/backend.h"

namespace mantissa {

class StagingPool {
 public:
  // `backend` must outlive the pool.
  explicit StagingPool(Backend& backend) : backend_(backend) {}
  // Waits until the device has passed the copies from and to this memory.
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Memory of at least `bytes` that nothing uses.
  std::shared_ptr<Storage> take(size_t bytes);
  // It is handed out again when the device has passed `last_copy` (null: no copy is left) and nobody else holds it: a
  // transport that gave a collective up may still write into its buffers.
  void give_back(std::shared_ptr<Storage> memory, std::unique_ptr<Event> last_copy);

  size_t blocks() const { return idle_.size(); }  // given back, whether or not they can be taken already

 private:
  struct Block {
    std::shared_ptr<Storage> memory;
    std::unique_ptr<Event> last_copy;
  };

  static bool passed(Block& block);

  Backend& backend_;
  std::vector<Block> idle_;
};

}  // namespace mantissa
