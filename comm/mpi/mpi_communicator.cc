#include "comm/mpi/mpi_communicator.h"

#include <climits>
#include <exception>

#include "comm/check_collective.h"
#include "comm/mpi/mpi_environment.h"
#include "comm/mpi/mpi_work.h"
#include "comm/registry.h"

namespace mantissa {
namespace {

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(const MpiOptions& options) : environment_(MpiEnvironment::acquire()), options_(options) {
    MANTISSA_CHECK(options_.piece_bytes > 0 && options_.piece_bytes <= INT_MAX,
                   "[mpi] piece_bytes must be in [1, {}], got {}", INT_MAX, options_.piece_bytes);
    MPI_Comm_rank(MPI_COMM_WORLD, &context_.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &context_.size);
    // A communicator of our own: messages of other users of MPI in this process cannot match ours.
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &context_.communicator), "create", 0, context_);
    check_mpi(MPI_Comm_set_errhandler(context_.communicator, MPI_ERRORS_RETURN), "create", 0, context_);
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(context_.communicator, MPI_COMM_TYPE_SHARED, context_.rank, MPI_INFO_NULL, &node),
              "create", 0, context_);
    MPI_Comm_rank(node, &local_rank_);
    MPI_Comm_size(node, &local_size_);
    MPI_Comm_free(&node);
  }

  ~MpiCommunicator() override {
    // Freeing is collective; when an exception is on its way, the other ranks are elsewhere and the job is about to
    // end.
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&context_.communicator);
  }

  std::string name() const override { return "mpi"; }
  int rank() const override { return context_.rank; }
  int size() const override { return context_.size; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_to_all(send, recv, size());
    const size_t row = recv.size_bytes() / static_cast<size_t>(size());
    return exchange("all_to_all", send, recv, row, [&](int to) { return send.raw() + static_cast<size_t>(to) * row; });
  }

  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_gather(send, recv, size());
    return exchange("all_gather", send, recv, send.size_bytes(), [&](int) { return send.raw(); });
  }

  std::unique_ptr<Work> broadcast(const Tensor& data, int root, Stream&) override {
    check_broadcast(data, root, size());
    auto work = make_work("broadcast", {data});
    if (size() > 1) work->broadcast(data.raw(), data.size_bytes(), root);
    return work;
  }

  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(size()));
    MANTISSA_CHECK(all.size() <= INT_MAX, "[all_gather_bytes] is for small records, got {} bytes", mine.size());
    const auto work = make_work("all_gather_bytes", {});
    work->all_gather(mine.data(), mine.size(), all.data());
    work->wait();
    return all;
  }

  void barrier() override {
    const auto work = make_work("barrier", {});
    work->barrier();
    work->wait();
  }

  void abort(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  std::unique_ptr<MpiWork> make_work(const char* collective, std::vector<Tensor> buffers) {
    return std::make_unique<MpiWork>(environment_, context_, collective, std::move(buffers), options_.piece_bytes);
  }

  // Row r of `recv` comes from rank r, which sends what row_for(this rank) is there. Every rank starts with another
  // partner, so that no rank is everybody's first.
  template <typename RowFor>
  std::unique_ptr<Work> exchange(const char* collective, const Tensor& send, const Tensor& recv, size_t row_bytes,
                                 RowFor row_for) {
    auto work = make_work(collective, {send, recv});
    const auto row_from = [&](int source) { return recv.raw() + static_cast<size_t>(source) * row_bytes; };
    for (int step = 1; step < size(); ++step) {
      const int source = (rank() + size() - step) % size();
      work->receive(row_from(source), row_bytes, source);
    }
    for (int step = 1; step < size(); ++step) {
      const int destination = (rank() + step) % size();
      work->send(row_for(destination), row_bytes, destination);
    }
    if (row_bytes > 0 && row_for(rank()) != row_from(rank())) std::memcpy(row_from(rank()), row_for(rank()), row_bytes);
    return work;
  }

  std::shared_ptr<MpiEnvironment> environment_;
  MpiOptions options_;
  MpiContext context_;
  int local_rank_ = 0, local_size_ = 1;
};

const bool kRegistered = register_communicator("mpi", {.create = [] { return create_mpi_communicator(); }});

}  // namespace

std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(options);
}

}  // namespace mantissa
