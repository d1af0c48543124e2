// Whether the ranks of a node bind their threads to cores of their own.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "core/base/processor_topology.h"

namespace mantissa {

// What each rank of a job tells of itself. Plain data.
struct PinningRecord {
  uint64_t node = 0;  // the same number for ranks of one machine, and for those only
  int threads = 0;
  bool free = false;  // may run on every processor of the machine: no launcher has bound it
};

// Processors for the threads of the rank that is number `local_rank` among those of its node; none where they are to
// stay free: the rank is alone, a launcher has bound ranks, they differ in their number of threads, or cores are fewer
// than threads. `local`: of the node's ranks, in their order.
std::vector<int> choose_processors(const ProcessorTopology& topology, const std::vector<PinningRecord>& local,
                                   int local_rank);

// Binds this rank's threads where choose_processors() says so. Returns a line for the log, or nothing where they stay
// free. Collective.
std::string pin_threads(Communicator& communicator, int threads);

}  // namespace mantissa
