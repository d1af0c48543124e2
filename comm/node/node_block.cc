#include "comm/node/node_block.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "comm/node/shared_file.h"
#include "core/base/error.h"
#include "core/base/round_up.h"

namespace mantissa {
namespace {

size_t whole_pages(size_t bytes) {
  const size_t page = bytes >= kHugePageBytes ? kHugePageBytes : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return round_up(bytes, page);
}

struct Outcome {
  SharedFile::Ticket ticket;
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

NodeBlock::NodeBlock(size_t bytes, const NodeRanks& node) : bytes_(bytes), distance_bytes_(whole_pages(bytes)) {
  range_ = std::make_unique<AddressRange>(distance_bytes_ * static_cast<size_t>(node.size));
}

std::shared_ptr<NodeBlock> NodeBlock::share(const NodeRanks& node, size_t bytes, std::string& reason) {
  reason.clear();
  std::shared_ptr<NodeBlock> block;
  std::optional<SharedFile> own;
  Outcome mine;
  mine.attempt([&] {
    block.reset(new NodeBlock(bytes, node));
    own.emplace(bytes, block->of_rank(node.rank));
    mine.ticket = own->ticket();
  });
  const std::vector<Outcome> made = gather(node, mine, reason);
  if (!reason.empty()) return nullptr;
  mine.attempt([&] {
    for (int rank = 0; rank < node.size; ++rank) {
      if (rank == node.rank) continue;
      const SharedFile::Ticket& theirs = made[static_cast<size_t>(rank)].ticket;
      if (theirs.bytes != bytes) {
        throw CommError(
            fmt::format("rank {} of this node asks for {} bytes of shared memory, rank {} for {}: all ranks "
                        "must ask for the same",
                        rank, theirs.bytes, node.rank, bytes));
      }
      map_shared_file(theirs, block->of_rank(rank));
    }
  });
  gather(node, mine, reason);  // after it all have opened all
  return reason.empty() ? block : nullptr;
}

}  // namespace mantissa
