#include "comm/mpi/mpi_work.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace mantissa {
namespace {

// Messages of all collectives use one tag: MPI keeps the order of messages between two ranks.
constexpr int kTag = 1;
constexpr int kUnusedTag = 2;

// Calls f(offset, count) for the pieces of a message; none for an empty one.
template <typename F>
void for_each_piece(size_t bytes, size_t piece_bytes, F f) {
  for (size_t offset = 0; offset < bytes; offset += piece_bytes) {
    f(offset, static_cast<int>(std::min(piece_bytes, bytes - offset)));
  }
}

// The code of the message that failed, where MPI says only that one did.
int failure_in(int code, const std::vector<MPI_Status>& statuses) {
  if (code != MPI_ERR_IN_STATUS) return code;
  for (const MPI_Status& status : statuses) {
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) return status.MPI_ERROR;
  }
  return code;
}

}  // namespace

MpiWork::MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, std::shared_ptr<NodeExchanges> node,
                 const char* collective, std::vector<Tensor> buffers, size_t piece_bytes)
    : environment_(std::move(environment)),
      context_(context),
      node_(std::move(node)),
      collective_(collective),
      buffers_(std::move(buffers)),
      piece_bytes_(piece_bytes) {}

MpiWork::~MpiWork() {
  if (requests_.empty()) return;
  environment_->abandon(std::move(buffers_));
}

void MpiWork::receive(std::byte* data, size_t bytes, int source) {
  bytes_ += bytes;
  for_each_piece(bytes, piece_bytes_, [&](size_t offset, int count) {
    check(MPI_Irecv(data + offset, count, MPI_BYTE, source, kTag, context_.communicator, new_request()));
  });
}

void MpiWork::send(const std::byte* data, size_t bytes, int destination) {
  bytes_ += bytes;
  for_each_piece(bytes, piece_bytes_, [&](size_t offset, int count) {
    check(MPI_Isend(data + offset, count, MPI_BYTE, destination, kTag, context_.communicator, new_request()));
  });
}

void MpiWork::all_gather(const std::byte* mine, size_t bytes, std::byte* all) {
  bytes_ += bytes;
  const int count = static_cast<int>(bytes);
  check(MPI_Iallgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, context_.communicator, new_request()));
}

void MpiWork::barrier() { check(MPI_Ibarrier(context_.communicator, new_request())); }

void MpiWork::exchange(NodeExchangeRequest request) {
  bytes_ += request.row_bytes * request.rows.size();
  try {
    exchange_ = node_->start(std::move(request));
  } catch (const CommError& error) {
    rethrow(error);
  }
}

bool MpiWork::test() {
  const bool exchanged = test_exchange();
  return test_messages() && exchanged;
}

bool MpiWork::test_exchange() {
  if (node_ == nullptr) return true;
  try {
    node_->advance();  // this collective or not: somebody may be waiting for any
  } catch (const CommError& error) {
    rethrow(error);
  }
  if (exchange_ && node_->done(*exchange_)) exchange_.reset();
  return !exchange_;
}

void MpiWork::rethrow(const CommError& error) const {
  throw CommError(
      fmt::format("[{}] rank {} of {}, {} bytes: {}", collective_, context_.rank, context_.size, bytes_, error.what()));
}

bool MpiWork::test_messages() {
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

void MpiWork::wait() {
  for (int looks = 0; !test(); ++looks) rest(looks);
}

void MpiWork::rest(int looks) {
  // A peer that has its own core answers within a few looks.
  constexpr int kEager = 50, kPatient = 2000;
  constexpr std::chrono::microseconds kNap{50};
  if (requests_.empty()) {
    // Other collectives' messages move only inside of MPI, and the peer that is waited for may need them.
    int found = 0;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kUnusedTag, context_.communicator, &found, MPI_STATUS_IGNORE));
    if (looks < kEager) return;
    // With other nodes a nap would hold up messages.
    if (looks > kPatient && node_->node().size == context_.size) return std::this_thread::sleep_for(kNap);
  }
  std::this_thread::yield();
}

}  // namespace mantissa
