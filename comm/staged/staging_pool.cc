#include "comm/staged/staging_pool.h"

#include <algorithm>
#include <thread>

namespace mantissa {
namespace {

// Collectives that differ little in size share blocks.
constexpr size_t kGranuleBytes = size_t{64} << 10;

}  // namespace

bool StagingPool::passed(Block& block) {
  if (block.last_copy != nullptr && block.last_copy->done()) block.last_copy.reset();
  return block.last_copy == nullptr;
}

StagingPool::~StagingPool() {
  for (Block& block : idle_) {
    try {
      while (!passed(block)) std::this_thread::yield();
    } catch (...) {
      // The device has failed: it copies nothing any more, and whoever uses it next is told.
    }
  }
}

std::shared_ptr<Storage> StagingPool::take(size_t bytes) {
  // The smallest block that suffices, else the largest.
  auto best = idle_.end();
  const auto is_better = [&](const Block& block) {
    if (best == idle_.end()) return true;
    const size_t size = block.memory->bytes(), best_size = best->memory->bytes();
    return best_size < bytes ? size > best_size : size >= bytes && size < best_size;
  };
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    if (passed(*block) && block->memory.use_count() == 1 && is_better(*block)) best = block;
  }
  if (best != idle_.end()) {
    const std::shared_ptr<Storage> memory = std::move(best->memory);
    idle_.erase(best);
    if (memory->bytes() >= bytes) return memory;
    // Too small: it goes, and a larger one takes its place, so that there are never more blocks than there were
    // collectives at once.
  }
  const size_t granules = std::max<size_t>(1, (bytes + kGranuleBytes - 1) / kGranuleBytes);
  return backend_.allocate_staging(granules * kGranuleBytes, "host copies of collectives");
}

void StagingPool::give_back(std::shared_ptr<Storage> memory, std::unique_ptr<Event> last_copy) {
  idle_.push_back({std::move(memory), std::move(last_copy)});
}

}  // namespace mantissa
