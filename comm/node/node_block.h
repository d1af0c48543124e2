// NodeBlock: one piece of memory of every rank of a node, each mapped by all of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/node/shared_mapping.h"

namespace mantissa {

// The ranks of a node, and a blocking gather of small records among them, in their order. The only thing that the
// memory of a node needs of a transport.
struct NodeRanks {
  int rank = 0;
  int size = 1;
  std::function<std::vector<std::byte>(std::span<const std::byte> mine)> gather;
};

class NodeBlock {
 public:
  // Of `bytes` for each rank. Collective. Null on all ranks if one of them cannot make or map the memory; `reason` is
  // then what the first of these met.
  static std::shared_ptr<NodeBlock> share(const NodeRanks& node, size_t bytes, std::string& reason);

  std::byte* of_rank(int rank) const { return parts_[static_cast<size_t>(rank)].data(); }
  size_t bytes() const { return parts_.front().bytes(); }

 private:
  std::vector<SharedMapping> parts_;  // by rank
};

}  // namespace mantissa
