// ExchangeGroups: the groups of ranks in which a sum over all ranks is made, stage by stage, and gathers, in reverse.
//
// The number of a rank has a digit for each stage, the first stage's lowest; digit s counts the members of its groups.
// Ranks in the group of a stage differ in this digit alone. In a stage each member adds up a part of the bucket (by
// all-to-all, then a sum), and the next stage divides the part: after all stages it is the rank's shard. Groups of the
// first stage are neighbours with neighbouring lanes. Their sums are nodes of the tree over lanes, so every sequence of
// stages gives the same bits (core/kernels/reduction/lane_tree.h).
//
//   direct        one stage of all ranks
//   hierarchical  the ranks of a node, then the ranks with the same place on each node: between nodes travel sums of
//                 the node, a part by each of its ranks
//   halving       groups of two, as often as 2 divides the ranks, then the rest: log2(ranks) messages for each bucket
//                 (recursive halving: Thakur, Rabenseifner, Gropp 2005)
#pragma once

#include "comm/comm_options.h"
#include "comm/communicator.h"

namespace mantissa {

// The sizes of the groups of each stage; their product is the number of ranks. `node_ranks`: of each node, 0 if nodes
// have different numbers of ranks or ranks are not numbered node by node. ConfigError if the exchange needs that.
std::vector<int> exchange_stages(Exchange exchange, int ranks, int node_ranks);

// The shard that a rank adds up: the digits of the rank in reverse order.
int shard_after_stages(int rank, const std::vector<int>& stages);

// The ranks of every node if that is the same number and ranks are numbered node by node, else 0. Collective.
int find_node_ranks(Communicator& communicator);

// A handle: copies share the groups.
class ExchangeGroups {
 public:
  struct Stage {
    Communicator* group = nullptr;
    int members = 1;
    int64_t first = 0;   // the lowest rank whose lanes the group has
    int64_t span = 1;    // ranks whose lanes a member has
    int64_t shards = 1;  // that a member still has after this stage
  };

  // A single stage. `all` must outlive the object.
  ExchangeGroups(Communicator& all);  // NOLINT: not explicit, since most have no other groups
  // Splits `all`, which must outlive the object. Collective.
  ExchangeGroups(Communicator& all, const std::vector<int>& sizes);

  Communicator& all() const { return *all_; }
  const std::vector<Stage>& stages() const { return *stages_; }
  std::vector<int> sizes() const;  // of the groups of each stage
  // Queues a gather on `stream`: whole (N * n), in which this rank's shard, of n elements, lies at its place. The work
  // must be advanced by every rank in the same order.
  std::unique_ptr<class StagedWork> all_gather(const Tensor& whole, Stream& stream) const;
  // Communicator::watch_captured() of all ranks and of the groups.
  void watch_captured(Stream& stream) const;

 private:
  Communicator* all_;
  int shard_ = 0;
  std::vector<std::shared_ptr<Communicator>> owned_;
  std::shared_ptr<const std::vector<Stage>> stages_;
};

// A sequence of collectives, each started after the end of its predecessor. test() starts no collective: all ranks must
// start the collectives of several sequences in the same order.
class StagedWork final : public Work {
 public:
  using Start = std::function<std::unique_ptr<Work>()>;
  explicit StagedWork(std::vector<Start> starts);  // starts the first collective

  bool test() override { return work_->test() && next_ == starts_.size(); }
  void wait() override;
  // Starts the successor of what is done. Whether the last collective has been started.
  bool advance();

 private:
  std::vector<Start> starts_;
  size_t next_ = 0;
  std::unique_ptr<Work> work_;
};

}  // namespace mantissa
