#include "comm/node/node_block.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/base/error.h"

namespace mantissa {
namespace {

struct Outcome {
  SharedMapping::Ticket ticket;
  char failure[256] = {};  // empty: none

  // Runs f; what it throws becomes the failure.
  template <typename F>
  void attempt(const F& f) {
    try {
      f();
    } catch (const CommError& error) {
      std::strncpy(failure, error.what(), sizeof(failure) - 1);
    }
  }
};
static_assert(std::is_trivially_copyable_v<Outcome>);

// Everybody's outcome; `reason` is the first failure.
std::vector<Outcome> gather(const NodeRanks& node, const Outcome& mine, std::string& reason) {
  const std::vector<std::byte> bytes = node.gather(std::as_bytes(std::span(&mine, 1)));
  std::vector<Outcome> all(static_cast<size_t>(node.size));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  const auto failed = std::find_if(all.begin(), all.end(), [](const Outcome& one) { return one.failure[0] != 0; });
  if (failed != all.end()) reason = failed->failure;
  return all;
}

}  // namespace

std::shared_ptr<NodeBlock> NodeBlock::share(const NodeRanks& node, size_t bytes, std::string& reason) {
  reason.clear();
  const auto block = std::make_shared<NodeBlock>();
  block->parts_.resize(static_cast<size_t>(node.size));
  SharedMapping& own = block->parts_[static_cast<size_t>(node.rank)];
  Outcome mine;
  mine.attempt([&] {
    own = SharedMapping::create(bytes);
    mine.ticket = own.ticket();
  });
  const std::vector<Outcome> made = gather(node, mine, reason);
  if (!reason.empty()) return nullptr;
  mine.attempt([&] {
    for (int rank = 0; rank < node.size; ++rank) {
      if (rank == node.rank) continue;
      block->parts_[static_cast<size_t>(rank)] = SharedMapping::open(made[static_cast<size_t>(rank)].ticket);
    }
  });
  gather(node, mine, reason);  // after it all have opened all
  own.seal();
  return reason.empty() ? block : nullptr;
}

}  // namespace mantissa
