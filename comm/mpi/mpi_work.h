// MPI as objects: its start and end, the communicators of the job and of a node, error codes as exceptions, and
// MpiWork, one collective in progress.
#pragma once

#include <mpi.h>

#include <optional>

#include "comm/communicator.h"
#include "comm/node/node_exchange.h"

namespace mantissa {

class MpiEnvironment {
 public:
  // The environment of the process: the first owner starts MPI and the last one ends it. CommError if MPI has ended.
  static std::shared_ptr<MpiEnvironment> acquire();
  // Finalizes MPI, which waits for all ranks. Not during an exception or after messages were abandoned: the other ranks
  // would wait for ever. When a process ends without finalizing MPI, mpirun ends the job with its exit code.
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  // Keeps the buffers of abandoned messages, because MPI may still write into them.
  void abandon(const std::vector<Tensor>& buffers) {
    abandoned_.insert(abandoned_.end(), buffers.begin(), buffers.end());
  }

 private:
  MpiEnvironment();
  std::vector<Tensor> abandoned_;
};

struct MpiContext {
  int rank = 0;
  int size = 1;
  MPI_Comm communicator = MPI_COMM_NULL;
};

// CommError naming the collective, rank, size and bytes unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* collective, size_t bytes, const MpiContext& context);

// The next three throw CommError. Their communicators return errors instead of ending the job; the caller frees them.

MpiContext duplicate_world();
// The ranks on this rank's node, in the order of `world`. If ranks_per_node is not 0, nodes are cut into pieces of so
// many ranks, the last of which may be smaller.
MpiContext split_into_nodes(const MpiContext& world, int ranks_per_node);
// By rank of `world`: its number in `node`, or -1.
std::vector<int> ranks_within(const MpiContext& world, const MpiContext& node);

// One collective in progress: its messages, and its part in an exchange through node memory.
class MpiWork : public Work {
 public:
  // `node`: exchanges that must continue whenever this rank waits for another; null if there are none.
  MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, std::shared_ptr<NodeExchanges> node,
          const char* collective, std::vector<Tensor> buffers, size_t piece_bytes);
  // Unfinished messages are abandoned without blocking: peers may be gone. An exchange within the node continues, since
  // others may count on it; it keeps its buffers itself.
  ~MpiWork() override;
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;

  // Start messages, cut into pieces. Messages between two ranks match in the order in which they are started.
  void receive(std::byte* data, size_t bytes, int source);
  void send(const std::byte* data, size_t bytes, int destination);
  void all_gather(const std::byte* mine, size_t bytes, std::byte* all);  // small: one message
  void barrier() { check(MPI_Ibarrier(context_.communicator, new_request())); }
  // Starts an exchange within the node; requires `node`.
  void exchange(NodeExchangeRequest request);

  bool test() override;
  // Yields the processor between two tests. MPI_Waitall spins: when ranks share cores with anything else, the peer that
  // it waits for does not run (measured with two busy neighbours on two cores: 5.7 s instead of 0.3 s for 250 MB).
  void wait() override;

 private:
  bool test_messages();
  bool test_exchange();
  // Calls f; a CommError names the collective.
  template <typename F>
  auto named(F f) const;
  // Between two tests, after `tests` of them.
  void rest(int tests);
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

}  // namespace mantissa
