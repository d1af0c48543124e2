#include "comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <chrono>
#include <climits>

#include "comm/mpi/mpi_environment.h"
#include "comm/mpi/node_ranks.h"
#include "comm/node/node_exchange.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa {
namespace {

// Messages of all collectives use one tag: MPI keeps the order of messages between two ranks.
constexpr int kTag = 1;
constexpr int kUnusedTag = 2;

// Calls f(offset, count) for the pieces of a message. An empty message has none.
template <typename F>
void for_each_piece(size_t bytes, size_t piece_bytes, F f) {
  for (size_t offset = 0; offset < bytes; offset += piece_bytes) {
    f(offset, static_cast<int>(std::min(piece_bytes, bytes - offset)));
  }
}

// The code of the failed message if `code` is MPI_ERR_IN_STATUS, else `code`.
int failure_in(int code, const std::vector<MPI_Status>& statuses) {
  if (code != MPI_ERR_IN_STATUS) return code;
  for (const MPI_Status& status : statuses) {
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) return status.MPI_ERROR;
  }
  return code;
}

// One collective in progress: its messages, and its part in an exchange through node memory.
class MpiWork : public Work {
 public:
  // `node`: exchanges that must continue whenever this rank waits for another; null if there are none.
  MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, std::shared_ptr<NodeExchanges> node,
          const char* collective, std::vector<Tensor> buffers, size_t piece_bytes)
      : environment_(std::move(environment)),
        context_(context),
        node_(std::move(node)),
        collective_(collective),
        buffers_(std::move(buffers)),
        piece_bytes_(piece_bytes) {}
  // Abandons unfinished messages: peers may be gone. An exchange within the node continues and keeps its buffers.
  ~MpiWork() override {
    if (!requests_.empty()) environment_->abandon(buffers_);
  }
  MpiWork& operator=(MpiWork&&) = delete;

  // Start messages, cut into pieces. Messages between two ranks match in the order in which they are started.
  void receive(std::byte* data, size_t bytes, int source) {
    bytes_ += bytes;
    for_each_piece(bytes, piece_bytes_, [&](size_t offset, int count) {
      check(MPI_Irecv(data + offset, count, MPI_BYTE, source, kTag, context_.communicator, new_request()));
    });
  }
  void send(const std::byte* data, size_t bytes, int destination) {
    bytes_ += bytes;
    for_each_piece(bytes, piece_bytes_, [&](size_t offset, int count) {
      check(MPI_Isend(data + offset, count, MPI_BYTE, destination, kTag, context_.communicator, new_request()));
    });
  }
  // Small: one message.
  void all_gather(const std::byte* mine, size_t bytes, std::byte* all) {
    bytes_ += bytes;
    const int count = static_cast<int>(bytes);
    check(MPI_Iallgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, context_.communicator, new_request()));
  }
  void barrier() { check(MPI_Ibarrier(context_.communicator, new_request())); }
  // Starts an exchange within the node; requires `node`.
  void exchange(NodeExchangeRequest request) {
    bytes_ += request.row_bytes * request.rows.size();
    exchange_ = named([&] { return node_->start(std::move(request)); });
  }

  bool test() override {
    const bool exchanged = test_exchange();
    return test_messages() && exchanged;
  }
  // Yields the processor between two tests. MPI_Waitall spins: when ranks share cores with anything else, the peer that
  // it waits for does not run (measured with two busy neighbours on two cores: 5.7 s instead of 0.3 s for 250 MB).
  void wait() override {
    for (int tests = 0; !test(); ++tests) rest(tests);
  }

 private:
  bool test_exchange() {
    if (node_ == nullptr) return true;
    named([&] { node_->advance(); });  // also without an exchange of its own: another rank may wait for any
    if (exchange_ && node_->done(*exchange_)) exchange_.reset();
    return !exchange_;
  }

  bool test_messages() {
    if (requests_.empty()) return true;
    std::vector<MPI_Status> statuses(requests_.size());
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data());
    check(failure_in(code, statuses));
    if (done) {
      requests_.clear();
      buffers_.clear();
    }
    return done != 0;
  }

  // Calls f; a CommError names the collective.
  template <typename F>
  std::invoke_result_t<F> named(F f) const {
    try {
      return f();
    } catch (const CommError& error) {
      throw collective_error(collective_, bytes_, context_, error.what());
    }
  }

  // Between two tests, after `tests` of them.
  void rest(int tests) {
    // A peer that has its own core answers within a few tests.
    constexpr int kEager = 50, kPatient = 2000;
    constexpr std::chrono::microseconds kNap{50};
    if (requests_.empty()) {
      // Other collectives' messages move only inside of MPI, and the awaited peer may need them.
      int found = 0;
      check(MPI_Iprobe(MPI_ANY_SOURCE, kUnusedTag, context_.communicator, &found, MPI_STATUS_IGNORE));
      if (tests < kEager) return;
      // With other nodes a nap would hold up messages.
      if (tests > kPatient && node_->node().size == context_.size) return std::this_thread::sleep_for(kNap);
    }
    std::this_thread::yield();
  }

  void check(int code) const { check_mpi(code, collective_, bytes_, context_); }
  MPI_Request* new_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  std::shared_ptr<MpiEnvironment> environment_;
  MpiContext context_;
  std::shared_ptr<NodeExchanges> node_;
  const char* collective_;
  std::vector<Tensor> buffers_;
  size_t piece_bytes_;
  size_t bytes_ = 0;
  std::vector<MPI_Request> requests_;
  std::optional<uint64_t> exchange_;  // while it is not done
};

class MpiCommunicator : public Communicator, private NodeMemory {
 public:
  // Frees the MPI communicators of the job and of this rank's node.
  MpiCommunicator(std::shared_ptr<MpiEnvironment> environment, const MpiContext& job, const MpiContext& node,
                  size_t piece_bytes)
      : Communicator({.rank = job.rank, .size = job.size, .local_rank = node.rank, .local_size = node.size}),
        environment_(std::move(environment)),
        job_(job),
        node_(node),
        piece_bytes_(piece_bytes),
        local_ranks_(ranks_within(job, node)) {
    if (local_size() == 1) return;
    exchanges_ = std::make_shared<NodeExchanges>(
        NodeRanks{.rank = local_rank(), .size = local_size(), .gather = [this](std::span<const std::byte> mine) {
                    return gather_bytes("node_memory", node_, mine);
                  }});
  }

  ~MpiCommunicator() override {
    if (exchanges_) environment_->abandon(exchanges_->buffers());
    // Freeing is collective. During an exception the other ranks are elsewhere and the job is about to end.
    if (std::uncaught_exceptions() > 0) return;
    MPI_Comm_free(&node_.communicator);
    MPI_Comm_free(&job_.communicator);
  }

  std::string name() const override { return "mpi"; }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_to_all(send, recv, size());
    return exchange(NodeExchangeKind::kAllToAll, send, recv);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_gather(send, recv, size());
    return exchange(NodeExchangeKind::kAllGather, send, recv);
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    return gather_bytes("all_gather_bytes", job_, mine);
  }
  void barrier() override {
    const auto work = make_work("barrier", job_, {});
    work->barrier();
    work->wait();
  }
  std::unique_ptr<Communicator> split(int color, int members) override {
    const MpiContext group = split_by_color(job_, color);
    MANTISSA_CHECK(group.size == members, "[split] color {} has {} ranks, expected {}", color, group.size, members);
    // The lowest rank of a node stands for it.
    const auto leader = std::ranges::find(local_ranks_, 0) - local_ranks_.begin();
    const MpiContext node = split_by_color(group, static_cast<int>(leader));
    return std::make_unique<MpiCommunicator>(environment_, group, node, piece_bytes_);
  }
  void abort(int exit_code) override {
    end_launcher_that_hangs();
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }

  NodeMemory* node_memory() override { return this; }
  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override {
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
    auto work = make_work("node_barrier", job_, {});
    if (exchanges_ != nullptr && exchanges_->shares_memory() && local_size() == size()) {
      work->exchange(barrier_request(exchanges_->node()));
    } else if (size() > 1) {
      work->barrier();
    }
    return work;
  }

  bool run_library(Collective collective, const Tensor& send, const Tensor& recv) override {
    const auto row = [&](const Tensor& whole) {
      const size_t bytes = whole.size_bytes() / static_cast<size_t>(size());
      MANTISSA_CHECK(bytes <= INT_MAX, "[run_library] a row must be below 2 GiB, got {} bytes", bytes);
      return static_cast<int>(bytes);
    };
    const auto run = [&](const char* name, const auto& function, auto... arguments) {
      check_mpi(function(send.raw(), arguments..., job_.communicator), name, send.size_bytes(), job_);
      return true;
    };
    const auto sum = [&](const char* name, const auto& function, const Tensor& counted) {
      MANTISSA_CHECK(send.dtype() == DType::kF32, "[run_library] sums of fp32, got {}", send.dtype());
      return run(name, function, recv.raw(), static_cast<int>(counted.numel()), MPI_FLOAT, MPI_SUM);
    };
    switch (collective) {
      case Collective::kAllToAll:
        return run("MPI_Alltoall", MPI_Alltoall, row(send), MPI_BYTE, recv.raw(), row(recv), MPI_BYTE);
      case Collective::kAllGather:
        return run("MPI_Allgather", MPI_Allgather, row(recv), MPI_BYTE, recv.raw(), row(recv), MPI_BYTE);
      case Collective::kReduceScatter:
        return sum("MPI_Reduce_scatter_block", MPI_Reduce_scatter_block, recv);
      case Collective::kAllReduce:
        return sum("MPI_Allreduce", MPI_Allreduce, send);
    }
    return false;
  }

 private:
  std::unique_ptr<MpiWork> make_work(const char* collective, const MpiContext& context, std::vector<Tensor> buffers) {
    return std::make_unique<MpiWork>(environment_, context, exchanges_, collective, std::move(buffers), piece_bytes_);
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
  std::unique_ptr<Work> exchange(NodeExchangeKind kind, const Tensor& send, const Tensor& recv) {
    const bool is_all_to_all = kind == NodeExchangeKind::kAllToAll;
    auto work = make_work(is_all_to_all ? "all_to_all" : "all_gather", job_, {send, recv});
    const size_t row_bytes = recv.size_bytes() / static_cast<size_t>(size());
    if (row_bytes == 0) return work;
    const auto offset_for = [&](int to) { return is_all_to_all ? static_cast<size_t>(to) * row_bytes : 0; };
    const auto row_from = [&](int source) { return recv.raw() + static_cast<size_t>(source) * row_bytes; };
    NodeExchangeRequest request{.kind = kind,
                                .buffers = {send, recv},
                                .offer = send.raw(),
                                .offer_bytes = send.size_bytes(),
                                .row_bytes = row_bytes};
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

  std::shared_ptr<MpiEnvironment> environment_;
  MpiContext job_, node_;
  size_t piece_bytes_;                        // largest single message
  std::vector<int> local_ranks_;              // by rank: its number on this node, or -1
  std::shared_ptr<NodeExchanges> exchanges_;  // null if this rank is alone on its node
  bool warned_ = false;                       // that memory cannot be shared
};

// "Open MPI v4.1.4".
std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

const bool kRegistered =
    register_communicator("mpi", {.create = [] { return create_mpi_communicator(); }, .library = mpi_library});

}  // namespace

std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options) {
  MANTISSA_CHECK(options.piece_bytes > 0 && options.piece_bytes <= INT_MAX,
                 "[mpi] piece_bytes must be in [1, {}], got {}", INT_MAX, options.piece_bytes);
  MANTISSA_CHECK(options.ranks_per_node >= 0, "[mpi] ranks_per_node must be at least 0, got {}",
                 options.ranks_per_node);
  auto environment = MpiEnvironment::acquire();
  // Communicators of our own: messages of other users of MPI in this process cannot match ours.
  const MpiContext job = duplicate_world(), node = split_into_nodes(job, options.ranks_per_node);
  return std::make_unique<MpiCommunicator>(std::move(environment), job, node, options.piece_bytes);
}

}  // namespace mantissa
