// NodeBlock: one piece of memory of every rank of a node, all mapped by each of them, side by side: what lies at the
// same place of every piece lies at equal distances.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/node/address_range.h"

namespace mantissa {

// The ranks of a node, and a blocking gather of small records among them, in their order. The only thing that the
// memory of a node needs of a transport.
struct NodeRanks {
  int rank = 0;
  int size = 1;
  GatherBytes gather;
};

class NodeBlock {
 public:
  // Of `bytes` for each rank. Collective. Null on all ranks if one of them cannot make or map the memory; `reason` is
  // then what the first of these met.
  static std::shared_ptr<NodeBlock> share(const NodeRanks& node, size_t bytes, std::string& reason);

  std::byte* of_rank(int rank) const { return range_->data() + static_cast<size_t>(rank) * distance_bytes_; }
  size_t bytes() const { return bytes_; }                    // of one rank's piece
  size_t distance_bytes() const { return distance_bytes_; }  // from one rank's piece to the next: whole pages
  size_t range_bytes() const { return range_->bytes(); }     // of all pieces

 private:
  NodeBlock(size_t bytes, const NodeRanks& node);

  size_t bytes_, distance_bytes_;
  std::unique_ptr<AddressRange> range_;
};

}  // namespace mantissa
