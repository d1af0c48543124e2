// NodeExchanges: collectives of one rank with the others of its node, who read each other's memory.
//
// A rank offers what it sends on the board and copies what it receives straight from the memory of those who offer it.
// An exchange is done when this rank has copied all that it receives and all others have read what it offers. Nothing
// moves by itself: advance() goes on with all exchanges under way, not only with the one that is asked for, because
// another rank may be waiting for any of them. To be called from one thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/node/node_board.h"
#include "comm/shared_rows.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// kMeeting: nothing is copied; it is done when all have come to it, and what they wrote before can be read.
enum class NodeExchangeKind : uint32_t { kAllToAll = 1, kAllGather, kMeeting };

struct NodeExchangeRequest {
  // `bytes` at `offset_bytes` of what rank `source` of the node offers go to `to`.
  struct Row {
    int source = 0;
    size_t offset_bytes = 0;
    std::byte* to = nullptr;
  };
  NodeExchangeKind kind = NodeExchangeKind::kAllGather;
  std::vector<Tensor> buffers;       // kept until the exchange is done, whoever still asks for it
  const std::byte* offer = nullptr;  // inside of the node's memory; null if this rank offers nothing
  size_t offer_bytes = 0;            // of those who offer: the same on all ranks
  size_t row_bytes = 0;
  std::vector<Row> rows;

  bool posts() const { return offer != nullptr || kind == NodeExchangeKind::kMeeting; }
};

NodeExchangeRequest meeting_of(const NodeRanks& node);

class NodeExchanges {
 public:
  // Collective.
  explicit NodeExchanges(NodeRanks node);
  const NodeRanks& node() const { return node_; }
  NodeExchanges(const NodeExchanges&) = delete;
  NodeExchanges& operator=(const NodeExchanges&) = delete;

  // Zeroed memory that the others can read, 64-byte aligned. Collective, the same size on all ranks. Null on all ranks
  // where it cannot be had; failure() is why.
  std::shared_ptr<Storage> allocate(size_t bytes);
  const std::string& failure() const { return failure_; }
  // Whether these bytes lie in this rank's part of such memory. ContractError if they lie in another's.
  bool holds(const std::byte* data, size_t bytes) const { return locate(data, bytes).memory != nullptr; }

  // What all ranks hold in the place that `mine`, in such memory, has in this rank's. Undefined if `mine` lies
  // elsewhere.
  SharedRows rows_of_all(const Tensor& mine) const;
  bool shares_memory() const { return board_ != nullptr; }

  // All ranks of the node start the same exchanges in the same order. Returns the number by which to ask for it.
  uint64_t start(NodeExchangeRequest request);
  bool done(uint64_t number) const;
  // Goes on with all exchanges, without blocking. CommError if the ranks disagree about one.
  void advance();
  bool under_way() const { return !under_way_.empty(); }
  std::vector<Tensor> buffers() const;  // of what is under way

 private:
  // One allocation, as seen by this rank.
  struct Place {
    std::shared_ptr<NodeBlock> memory;
    NodePost post;  // block and offset
  };
  struct Exchange {
    uint64_t number = 0;
    NodeExchangeRequest request;
    NodePost post;
    bool posted = false;
  };

  Place locate(const std::byte* data, size_t bytes) const;
  // Reads what it can; true when it is done.
  bool advance(Exchange& exchange);
  void copy(const Exchange& exchange, const NodeExchangeRequest::Row& row, const NodePost& post) const;

  NodeRanks node_;
  std::string failure_;
  std::unique_ptr<NodeBoard> board_;              // null where memory cannot be shared
  std::vector<std::weak_ptr<NodeBlock>> blocks_;  // by number; gone with the last tensor in them
  std::deque<Exchange> under_way_;                // in order
  uint64_t next_ = 0;
};

}  // namespace mantissa
