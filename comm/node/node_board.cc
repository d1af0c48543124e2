#include "comm/node/node_board.h"

#include <fmt/core.h>

#include "core/base/error.h"

namespace mantissa {

bool NodeBoard::post(uint64_t number, const NodePost& post) {
  Place& mine = place(number, rank_);
  const bool fresh = mine.ready.load(std::memory_order_relaxed) == 0;
  if (!fresh && mine.reads.load(std::memory_order_acquire) != readers_) return false;
  mine.post = post;
  mine.reads.store(0, std::memory_order_relaxed);
  mine.ready.store(number + 1, std::memory_order_release);
  return true;
}

const NodePost* NodeBoard::find(uint64_t number, int rank) const {
  const Place& theirs = place(number, rank);
  const uint64_t ready = theirs.ready.load(std::memory_order_acquire);
  if (ready > number + 1) {
    throw CommError(
        fmt::format("the rank with number {} on this node is at collective {} and has offered nothing to "
                    "read for collective {}: all ranks of a node must call the same collectives, with "
                    "operands in shared memory on all of them or on none",
                    rank, ready - 1, number));
  }
  return ready == number + 1 ? &theirs.post : nullptr;
}

void NodeBoard::read(uint64_t number, int rank) { place(number, rank).reads.fetch_add(1, std::memory_order_release); }

bool NodeBoard::is_read_by_all(uint64_t number) const {
  const Place& mine = place(number, rank_);
  const bool later = mine.ready.load(std::memory_order_relaxed) > number + 1;  // which presupposes it
  return later || mine.reads.load(std::memory_order_acquire) == readers_;
}

}  // namespace mantissa
