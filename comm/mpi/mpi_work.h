// MpiWork: one collective that is under way: its messages, and its part in an exchange through the memory of the node.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_environment.h"
#include "comm/node/node_exchange.h"
#include "core/base/error.h"

namespace mantissa {

class MpiWork : public Work {
 public:
  // `node`: what has to go on whenever this rank waits for another; null where nothing does.
  MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, std::shared_ptr<NodeExchanges> node,
          const char* collective, std::vector<Tensor> buffers, size_t piece_bytes);
  // Work that is not done is given up without blocking: the peers may be gone. See MpiEnvironment::abandon. An exchange
  // within the node keeps its buffers by itself, and the others may count on it: it goes on.
  ~MpiWork() override;
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;

  // Start messages, cut into pieces. Messages between two ranks match in the order in which they are started.
  void receive(std::byte* data, size_t bytes, int source);
  void send(const std::byte* data, size_t bytes, int destination);
  void all_gather(const std::byte* mine, size_t bytes, std::byte* all);  // small: one message
  void barrier();
  // Starts an exchange within the node, which needs `node`.
  void exchange(NodeExchangeRequest request);

  bool test() override;
  // Gives the processor away between two looks. MPI_Waitall spins: when ranks share cores with anything else, the peer
  // that is waited for does not get to run (measured with two busy neighbours on two cores: 5.7 s instead of 0.3 s for
  // 250 MB).
  void wait() override;

 private:
  bool test_messages();
  bool test_exchange();
  [[noreturn]] void rethrow(const CommError& error) const;  // naming the collective
  // Between two looks, after `looks` of them.
  void rest(int looks);
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
