// Run by mpirun: device tensors over MPI, through host memory. The argument is the number of ranks that it is to find.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/mpi/mpi_communicator.h"
#include "comm/staged/staged_communicator.h"
#include "core/backend/registry.h"
#include "core/cuda/emulation/faults.h"
#include "tests/comm/emulated_gpu.h"
#include "tests/comm/random_collectives.h"

namespace mantissa {
namespace {

int expected_ranks = 0;

class StagedOverMpi : public ::testing::Test {
 protected:
  testing::EmulatedGpu gpu_;
  std::unique_ptr<Communicator> mpi_ = create_mpi_communicator({.piece_bytes = 100'003});
  std::unique_ptr<Backend> backend_ = create_backend("cuda");
  std::unique_ptr<Communicator> staged_ = create_staged_communicator(*mpi_, *backend_);
};

TEST_F(StagedOverMpi, KeepsTheContract) {
  ASSERT_EQ(staged_->size(), expected_ranks);
  EXPECT_EQ(staged_->name(), "mpi through host memory");
  testing::check_communicator_contract(*staged_, gpu_);
  testing::check_communicator_contract(*staged_);
}

TEST_F(StagedOverMpi, CarriesRandomSequencesOnSeveralStreams) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    // Other orders of the streams on every rank.
    cuda::emulation::set_seed(seed * 100 + static_cast<uint64_t>(staged_->rank()));
    testing::run_random_collectives(*staged_, gpu_, {.seed = seed});
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return EXIT_FAILURE;
  mantissa::expected_ranks = std::atoi(argv[1]);
  const auto environment = mantissa::create_mpi_communicator();  // MPI can be started only once: keeps it for all cases
  return RUN_ALL_TESTS();
}
