#include "comm/node/node_block.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "comm/node/shared_file.h"
#include "core/base/error.h"
#include "core/base/round_up.h"

namespace mantissa {
namespace {

size_t whole_pages(size_t bytes) {
  const size_t page = bytes >= kHugePageBytes ? kHugePageBytes : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return round_up(bytes, page);
}

// Runs f on this rank. Returns the message of the first rank's CommError; empty if all ranks succeeded. Collective.
template <typename F>
std::string first_failure(const NodeRanks& node, const F& f) {
  std::string mine;
  try {
    f();
  } catch (const CommError& error) {
    mine = error.what();
  }
  for (const std::string& failure : gather_texts(node.gather, mine)) {
    if (!failure.empty()) return failure;
  }
  return "";
}

}  // namespace

NodeBlock::NodeBlock(size_t bytes, const NodeRanks& node) : bytes_(bytes), distance_bytes_(whole_pages(bytes)) {
  range_ = std::make_unique<AddressRange>(distance_bytes_ * static_cast<size_t>(node.size));
}

std::shared_ptr<NodeBlock> NodeBlock::share(const NodeRanks& node, size_t bytes, std::string& reason) {
  std::shared_ptr<NodeBlock> block;
  std::optional<SharedFile> own;
  SharedFile::Ticket mine;
  reason = first_failure(node, [&] {
    block.reset(new NodeBlock(bytes, node));
    own.emplace(bytes, block->of_rank(node.rank));
    mine = own->ticket();
  });
  if (!reason.empty()) return nullptr;
  const std::vector<std::byte> gathered = node.gather(std::as_bytes(std::span(&mine, 1)));
  std::vector<SharedFile::Ticket> tickets(static_cast<size_t>(node.size));
  std::memcpy(tickets.data(), gathered.data(), gathered.size());
  // `own` must stay open until all ranks have opened it: after this gather.
  reason = first_failure(node, [&] {
    for (int rank = 0; rank < node.size; ++rank) {
      if (rank == node.rank) continue;
      const SharedFile::Ticket& theirs = tickets[static_cast<size_t>(rank)];
      if (theirs.bytes != bytes) {
        throw CommError(
            fmt::format("rank {} of this node asks for {} bytes of shared memory, rank {} for {}: all ranks "
                        "must ask for the same",
                        rank, theirs.bytes, node.rank, bytes));
      }
      map_shared_file(theirs, block->of_rank(rank));
    }
  });
  return reason.empty() ? block : nullptr;
}

}  // namespace mantissa
