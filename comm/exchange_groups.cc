#include "comm/exchange_groups.h"

#include <numeric>

namespace mantissa {

std::vector<int> exchange_stages(Exchange exchange, int ranks, int node_ranks) {
  const bool has_nodes = node_ranks > 1 && node_ranks < ranks;
  require<ConfigError>(exchange != Exchange::kHierarchical || node_ranks > 0,
                       "comm.exchange: hierarchical needs nodes with equally many ranks, numbered node by node; start "
                       "as many on each node (mpirun --map-by ppr:N:node, srun --ntasks-per-node=N "
                       "--distribution=block), or give comm.exchange=direct or halving");
  if (exchange == Exchange::kHalving) {
    std::vector<int> stages;
    for (; ranks % 2 == 0; ranks /= 2) stages.push_back(2);
    if (ranks > 1 || stages.empty()) stages.push_back(ranks);
    return stages;
  }
  if (exchange == Exchange::kDirect || !has_nodes) return {ranks};
  return {node_ranks, ranks / node_ranks};
}

int shard_after_stages(int rank, const std::vector<int>& stages) {
  int shard = 0;
  for (const int members : stages) {
    shard = shard * members + rank % members;
    rank /= members;
  }
  return shard;
}

int find_node_ranks(Communicator& communicator) {
  const std::vector<RankPlace> places = all_gather_records(communicator, communicator.place());
  const int size = places[0].local_size;
  for (const RankPlace& place : places) {
    if (place.local_size != size || place.local_rank != place.rank % size) return 0;
  }
  return communicator.size() % size == 0 ? size : 0;
}

ExchangeGroups::ExchangeGroups(Communicator& all)
    : all_(&all),
      shard_(all.rank()),
      stages_(std::make_shared<std::vector<Stage>>(1, Stage{.group = &all, .members = all.size()})) {}

ExchangeGroups::ExchangeGroups(Communicator& all, const std::vector<int>& sizes) : ExchangeGroups(all) {
  const int rank = all.rank(), product = std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
  MANTISSA_CHECK(product == all.size(), "[exchange_groups] stages of {} ranks together, got {}", product, all.size());
  shard_ = shard_after_stages(rank, sizes);
  if (sizes.size() < 2) return;
  std::vector<Stage> stages;
  int span = 1;
  for (const int members : sizes) {
    const int place = rank / span % members;
    owned_.emplace_back(all.split(rank - place * span, members));  // the ranks that differ in this digit
    stages.push_back({.group = owned_.back().get(),
                      .members = members,
                      .first = rank - rank % (span * members),
                      .span = span,
                      .shards = all.size() / (span * members)});
    span *= members;
  }
  stages_ = std::make_shared<std::vector<Stage>>(std::move(stages));
}

std::vector<int> ExchangeGroups::sizes() const {
  std::vector<int> sizes;
  for (const Stage& stage : stages()) sizes.push_back(stage.members);
  return sizes;
}

void ExchangeGroups::watch_captured(Stream& stream) const {
  all_->watch_captured(stream);
  for (const auto& group : owned_) group->watch_captured(stream);
}

std::unique_ptr<StagedWork> ExchangeGroups::all_gather(const Tensor& whole, Stream& stream) const {
  const int64_t shard = whole.numel() / all_->size();
  std::vector<StagedWork::Start> starts;
  int64_t begin = shard_;  // of what this rank has, in shards
  for (auto stage = stages().rbegin(); stage != stages().rend(); ++stage) {
    const int64_t own = stage->group->rank(), count = stage->shards;
    const Tensor all = whole.slice((begin - own * count) * shard, stage->members * count * shard);
    const Tensor mine = whole.slice(begin * shard, count * shard);
    starts.emplace_back([group = stage->group, all, mine, &stream] {
      return group->all_gather(mine, all.view({group->size(), mine.numel()}), stream);
    });
    begin -= own * count;
  }
  return std::make_unique<StagedWork>(std::move(starts));
}

StagedWork::StagedWork(std::vector<Start> starts) : starts_(std::move(starts)) { work_ = starts_[next_++](); }

bool StagedWork::advance() {
  while (next_ < starts_.size() && work_->test()) work_ = starts_[next_++]();
  return next_ == starts_.size();
}

void StagedWork::wait() {
  for (work_->wait(); next_ < starts_.size(); work_->wait()) work_ = starts_[next_++]();
}

}  // namespace mantissa
