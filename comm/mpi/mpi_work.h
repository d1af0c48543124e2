// MpiWork: the messages of one collective that is under way.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_environment.h"

namespace mantissa {

class MpiWork : public Work {
 public:
  MpiWork(std::shared_ptr<MpiEnvironment> environment, MpiContext context, const char* collective,
          std::vector<Tensor> buffers, size_t piece_bytes);
  // Work that is not done is given up without blocking: the peers may be gone. See MpiEnvironment::abandon.
  ~MpiWork() override;
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;

  // Start messages, cut into pieces. Messages between two ranks match in the order in which they are started.
  void receive(std::byte* data, size_t bytes, int source);
  void send(const std::byte* data, size_t bytes, int destination);
  void broadcast(std::byte* data, size_t bytes, int root);
  void all_gather(const std::byte* mine, size_t bytes, std::byte* all);  // small: one message
  void barrier();

  bool test() override;
  // Gives the processor away between two looks. MPI_Waitall spins: when ranks share cores with anything else, the peer
  // that is waited for does not get to run (measured with two busy neighbours on two cores: 5.7 s instead of 0.3 s for
  // 250 MB).
  void wait() override;

 private:
  void check(int code) const { check_mpi(code, collective_, bytes_, context_); }
  MPI_Request* new_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  std::shared_ptr<MpiEnvironment> environment_;
  MpiContext context_;
  const char* collective_;
  std::vector<Tensor> buffers_;
  size_t piece_bytes_;
  size_t bytes_ = 0;
  std::vector<MPI_Request> requests_;
};

}  // namespace mantissa
