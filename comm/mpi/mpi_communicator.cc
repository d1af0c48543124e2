#include "comm/mpi/mpi_communicator.h"

#include <climits>
#include <exception>
#include <utility>

#include "comm/mpi/mpi_work.h"
#include "comm/registry.h"
#include "core/base/log.h"

namespace mantissa {
namespace {

// The job and this rank's node. MPI's communicators are our own: messages of other users of MPI in this process cannot
// match ours.
struct MpiRanks {
  explicit MpiRanks(const MpiOptions& options) : environment(MpiEnvironment::acquire()) {
    MANTISSA_CHECK(options.piece_bytes > 0 && options.piece_bytes <= INT_MAX,
                   "[mpi] piece_bytes must be in [1, {}], got {}", INT_MAX, options.piece_bytes);
    MANTISSA_CHECK(options.ranks_per_node >= 0, "[mpi] ranks_per_node must be at least 0, got {}",
                   options.ranks_per_node);
    job = duplicate_world();
    node = split_into_nodes(job, options.ranks_per_node);
  }
  RankPlace place() const {
    return {.rank = job.rank, .size = job.size, .local_rank = node.rank, .local_size = node.size};
  }

  std::shared_ptr<MpiEnvironment> environment;
  MpiContext job, node;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(const MpiRanks& ranks, const MpiOptions& options)
      : Communicator(ranks.place()),
        ranks_(ranks),
        options_(options),
        local_ranks_(ranks_within(ranks.job, ranks.node)) {
    if (local_size() == 1) return;
    exchanges_ = std::make_shared<NodeExchanges>(
        NodeRanks{.rank = local_rank(), .size = local_size(), .gather = [this](std::span<const std::byte> mine) {
                    return gather_bytes("allocate_shared", ranks_.node, mine);
                  }});
  }

  ~MpiCommunicator() override {
    if (exchanges_ && exchanges_->in_progress()) ranks_.environment->abandon(exchanges_->buffers());
    // Freeing is collective. During an exception the other ranks are elsewhere and the job is about to end.
    if (std::uncaught_exceptions() > 0) return;
    MPI_Comm_free(&ranks_.node.communicator);
    MPI_Comm_free(&ranks_.job.communicator);
  }

  std::string name() const override { return "mpi"; }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_to_all(send, recv, size());
    const size_t row = recv.size_bytes() / static_cast<size_t>(size());
    return exchange(NodeExchangeKind::kAllToAll, send, recv, [&](int to) { return static_cast<size_t>(to) * row; });
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_gather(send, recv, size());
    return exchange(NodeExchangeKind::kAllGather, send, recv, [](int) { return size_t{0}; });
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    return gather_bytes("all_gather_bytes", ranks_.job, mine);
  }
  void barrier() override {
    const auto work = make_work("barrier", ranks_.job, {});
    work->barrier();
    work->wait();
  }
  void abort(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

  bool shares_node_memory() const override { return true; }
  std::shared_ptr<Storage> allocate_shared(size_t bytes, const char* what) override {
    if (exchanges_ == nullptr) return nullptr;
    auto storage = exchanges_->allocate(bytes);
    if (storage == nullptr && bytes > 0 && !std::exchange(warned_, true) && local_rank() == 0) {
      log_warn("the {} ranks of this node cannot share memory for {} and exchange by messages, which is slower: {}",
               local_size(), what, exchanges_->failure());
    }
    return storage;
  }
  SharedRows rows_of_all(const Tensor& mine) const override {
    return is_shared(mine) && local_size() == size() ? exchanges_->rows_of_all(mine) : SharedRows{};
  }
  std::unique_ptr<Work> node_barrier(Stream&) override {
    auto work = make_work("node_barrier", ranks_.job, {});
    if (exchanges_ != nullptr && exchanges_->shares_memory() && local_size() == size()) {
      work->exchange(barrier_request(exchanges_->node()));
    } else if (size() > 1) {
      work->barrier();
    }
    return work;
  }

 private:
  std::unique_ptr<MpiWork> make_work(const char* collective, const MpiContext& context, std::vector<Tensor> buffers) {
    return std::make_unique<MpiWork>(ranks_.environment, context, exchanges_, collective, std::move(buffers),
                                     options_.piece_bytes);
  }

  std::vector<std::byte> gather_bytes(const char* collective, const MpiContext& context,
                                      std::span<const std::byte> mine) {
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(context.size));
    MANTISSA_CHECK(all.size() <= INT_MAX, "[{}] is for small records, got {} bytes", collective, mine.size());
    const auto work = make_work(collective, context, {});
    work->all_gather(mine.data(), mine.size(), all.data());
    work->wait();
    return all;
  }

  bool is_shared(const Tensor& tensor) const {
    return exchanges_ != nullptr && tensor.size_bytes() > 0 && exchanges_->holds(tensor.raw(), tensor.size_bytes());
  }

  // Row r of `recv` comes from rank r, which sends the row at offset_for(this rank) of its `send`. Every rank starts
  // with a different partner, so that no rank is everybody's first.
  template <typename OffsetFor>
  std::unique_ptr<Work> exchange(NodeExchangeKind kind, const Tensor& send, const Tensor& recv, OffsetFor offset_for) {
    auto work = make_work(kind == NodeExchangeKind::kAllToAll ? "all_to_all" : "all_gather", ranks_.job, {send, recv});
    const size_t row_bytes = recv.size_bytes() / static_cast<size_t>(size());
    if (row_bytes == 0) return work;
    const auto row_from = [&](int source) { return recv.raw() + static_cast<size_t>(source) * row_bytes; };
    NodeExchangeRequest request{.kind = kind,
                                .buffers = {send, recv},
                                .offer = send.raw(),
                                .offer_bytes = send.size_bytes(),
                                .row_bytes = row_bytes,
                                .rows = {}};
    const bool shared = is_shared(send);
    const auto through_memory = [&](int other) { return shared && local_ranks_[static_cast<size_t>(other)] >= 0; };
    for (int step = 1; step < size(); ++step) {
      const int source = (rank() + size() - step) % size();
      if (through_memory(source)) {
        request.rows.push_back({.source = local_ranks_[static_cast<size_t>(source)],
                                .offset_bytes = offset_for(rank()),
                                .to = row_from(source)});
      } else {
        work->receive(row_from(source), row_bytes, source);
      }
    }
    for (int step = 1; step < size(); ++step) {
      const int destination = (rank() + step) % size();
      if (!through_memory(destination)) work->send(send.raw() + offset_for(destination), row_bytes, destination);
    }
    if (shared) work->exchange(std::move(request));
    const std::byte* const mine = send.raw() + offset_for(rank());
    if (mine != row_from(rank())) std::memcpy(row_from(rank()), mine, row_bytes);
    return work;
  }

  MpiRanks ranks_;
  MpiOptions options_;
  std::vector<int> local_ranks_;              // by rank: its number on this node, or -1
  std::shared_ptr<NodeExchanges> exchanges_;  // null if this rank is alone on its node
  bool warned_ = false;                       // that memory cannot be shared
};

const bool kRegistered = register_communicator("mpi", {.create = [] { return create_mpi_communicator(); }});

}  // namespace

std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(MpiRanks(options), options);
}

}  // namespace mantissa
