#include "comm/mpi/mpi_work.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <thread>

namespace mantissa {
namespace {

// Messages of all collectives use one tag: MPI keeps the order of messages between two ranks.
constexpr int kTag = 1;
constexpr int kUnusedTag = 2;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

void describe(MpiContext& context) {
  check_mpi(MPI_Comm_set_errhandler(context.communicator, MPI_ERRORS_RETURN), "create", 0, context);
  MPI_Comm_rank(context.communicator, &context.rank);
  MPI_Comm_size(context.communicator, &context.size);
}

// Calls f(offset, count) for the pieces of a message; none for an empty one.
template <typename F>
void for_each_piece(size_t bytes, size_t piece_bytes, F f) {
  for (size_t offset = 0; offset < bytes; offset += piece_bytes) {
    f(offset, static_cast<int>(std::min(piece_bytes, bytes - offset)));
  }
}

// The code of the message that failed, if MPI says only that one did.
int failure_in(int code, const std::vector<MPI_Status>& statuses) {
  if (code != MPI_ERR_IN_STATUS) return code;
  for (const MPI_Status& status : statuses) {
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) return status.MPI_ERROR;
  }
  return code;
}

}  // namespace

std::shared_ptr<MpiEnvironment> MpiEnvironment::acquire() {
  static std::weak_ptr<MpiEnvironment> current;
  if (auto environment = current.lock()) return environment;
  const std::shared_ptr<MpiEnvironment> environment(new MpiEnvironment);
  current = environment;
  return environment;
}

MpiEnvironment::MpiEnvironment() {
  int finalized = 0, initialized = 0;
  MPI_Finalized(&finalized);
  if (finalized) throw CommError("[mpi] MPI has been finalized and cannot be started again in this process");
  MPI_Initialized(&initialized);
  if (initialized) throw CommError("[mpi] other code of this process has started MPI already");
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) throw CommError(fmt::format("[mpi] MPI_Init_thread failed: {}", error_text(code)));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw CommError("[mpi] this MPI cannot be used by a program with threads (MPI_THREAD_FUNNELED)");
  }
}

MpiEnvironment::~MpiEnvironment() {
  if (std::uncaught_exceptions() == 0 && abandoned_.empty()) MPI_Finalize();
}

void check_mpi(int code, const char* collective, size_t bytes, const MpiContext& context) {
  if (code == MPI_SUCCESS) return;
  throw CommError(
      fmt::format("[{}] rank {} of {}, {} bytes: {}", collective, context.rank, context.size, bytes, error_text(code)));
}

MpiContext duplicate_world() {
  MpiContext world;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world.communicator), "create", 0, world);
  describe(world);
  return world;
}

MpiContext split_into_nodes(const MpiContext& world, int ranks_per_node) {
  MpiContext node;
  check_mpi(
      MPI_Comm_split_type(world.communicator, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &node.communicator),
      "create", 0, world);
  describe(node);
  if (ranks_per_node == 0) return node;
  MpiContext piece;
  check_mpi(MPI_Comm_split(node.communicator, node.rank / ranks_per_node, node.rank, &piece.communicator), "create", 0,
            world);
  MPI_Comm_free(&node.communicator);
  describe(piece);
  return piece;
}

std::vector<int> ranks_within(const MpiContext& world, const MpiContext& node) {
  MPI_Group all = MPI_GROUP_NULL, local = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(world.communicator, &all), "create", 0, world);
  check_mpi(MPI_Comm_group(node.communicator, &local), "create", 0, world);
  std::vector<int> ranks(static_cast<size_t>(world.size)), translated(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  check_mpi(MPI_Group_translate_ranks(all, world.size, ranks.data(), local, translated.data()), "create", 0, world);
  MPI_Group_free(&all);
  MPI_Group_free(&local);
  std::replace(translated.begin(), translated.end(), int{MPI_UNDEFINED}, -1);
  return translated;
}

MpiWork::MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, std::shared_ptr<NodeExchanges> node,
                 const char* collective, std::vector<Tensor> buffers, size_t piece_bytes)
    : environment_(std::move(environment)),
      context_(context),
      node_(std::move(node)),
      collective_(collective),
      buffers_(std::move(buffers)),
      piece_bytes_(piece_bytes) {}

MpiWork::~MpiWork() {
  if (!requests_.empty()) environment_->abandon(buffers_);
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

template <typename F>
auto MpiWork::named(F f) const {
  try {
    return f();
  } catch (const CommError& error) {
    throw CommError(fmt::format("[{}] rank {} of {}, {} bytes: {}", collective_, context_.rank, context_.size, bytes_,
                                error.what()));
  }
}

void MpiWork::exchange(NodeExchangeRequest request) {
  bytes_ += request.row_bytes * request.rows.size();
  exchange_ = named([&] { return node_->start(std::move(request)); });
}

bool MpiWork::test() {
  const bool exchanged = test_exchange();
  return test_messages() && exchanged;
}

bool MpiWork::test_exchange() {
  if (node_ == nullptr) return true;
  named([&] { node_->advance(); });  // also without an exchange of its own: another rank may wait for any
  if (exchange_ && node_->done(*exchange_)) exchange_.reset();
  return !exchange_;
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
  for (int tests = 0; !test(); ++tests) rest(tests);
}

void MpiWork::rest(int tests) {
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

}  // namespace mantissa
