// Run by mpirun: ranks that sum gradients through the memory of their node, until rank 1 is killed in the middle of it.
// It has offered the first buckets and never offers the last: the others wait for it. Tells what it maps in /dev/shm.
#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>

#include "comm/registry.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);  // what a killed process has not written is lost
}

void say_what_is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (const size_t path = line.find("/dev/shm/"); path != std::string::npos) say("maps " + line.substr(path));
  }
}

int run() {
  const auto communicator = create_communicator("mpi");
  if (communicator->allocate_shared(64, "a test") == nullptr) {
    say("the ranks share no memory");
    return 1;
  }
  testing::TrainingRank rank(*communicator, {});
  rank.reduce();
  say(fmt::format("process {}", getpid()));
  say_what_is_mapped();
  communicator->barrier();
  rank.reduce([&](int r, int parameter, int64_t element) {
    if (r == 1 && parameter == 0 && rank.reducer->started() > 0) {
      say(fmt::format("rank 1 dies: {} of {} buckets have started", rank.reducer->started(), rank.buckets->size()));
      kill(getpid(), SIGKILL);
    }
    return testing::toy_gradient(r, parameter, element);
  });
  say("the sum is complete");
  return 0;
}

}  // namespace
}  // namespace mantissa

int main() { return mantissa::run(); }
