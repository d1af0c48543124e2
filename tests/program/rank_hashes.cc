// Trains as `mantissa train` does and prints the final weights of each rank, which no file of a run holds:
//
//   mpirun -np N rank_hashes CONFIG [key.sub=value …]      "weights of rank R: HASH" for each rank, from rank 0
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "tests/testing/weight_hash.h"
#include "tools/run/job/job.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

void run(const std::string& config_path, const std::vector<std::string>& settings) {
  const Config config = load_config(config_path, settings);
  const std::unique_ptr<Communicator> communicator = start_communicator(config.comm.backend, config.device);
  start_logging(communicator->rank(), communicator->size());
  Session session(config, *communicator);
  TrainStep step(session);
  while (step.next_to_start() < config.train.steps) step.run();
  step.finish();
  const uint64_t mine = hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream);
  const std::vector<uint64_t> all = all_gather_records(*communicator, mine);
  for (size_t rank = 0; rank < all.size() && communicator->rank() == 0; ++rank) {
    fmt::print("weights of rank {}: {:016x}\n", rank, all[rank]);
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "rank_hashes: expected a configuration file\n");
    return 2;
  }
  try {
    mantissa::run(argv[1], {argv + 2, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank_hashes: {}\n", error.what());
    return 1;
  }
}
