#include "comm/mpi/mpi_work.h"

#include <algorithm>
#include <thread>

namespace mantissa {
namespace {

// Messages of all collectives use one tag: MPI keeps the order of messages between two ranks.
constexpr int kTag = 1;

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

MpiWork::MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, const char* collective,
                 std::vector<Tensor> buffers, size_t piece_bytes)
    : environment_(std::move(environment)),
      context_(context),
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

void MpiWork::broadcast(std::byte* data, size_t bytes, int root) {
  bytes_ += bytes;
  for_each_piece(bytes, piece_bytes_, [&](size_t offset, int count) {
    check(MPI_Ibcast(data + offset, count, MPI_BYTE, root, context_.communicator, new_request()));
  });
}

void MpiWork::all_gather(const std::byte* mine, size_t bytes, std::byte* all) {
  bytes_ += bytes;
  const int count = static_cast<int>(bytes);
  check(MPI_Iallgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, context_.communicator, new_request()));
}

void MpiWork::barrier() { check(MPI_Ibarrier(context_.communicator, new_request())); }

bool MpiWork::test() {
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
  while (!test()) std::this_thread::yield();
}

}  // namespace mantissa
