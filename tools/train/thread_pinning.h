// Whether the ranks of a node bind their threads to cores of their own.
#pragma once

#include <string>

#include "core/base/processor_topology.h"
#include "tools/train/node_processors.h"

namespace mantissa {

// Processors for the threads of the rank, out of those that it shares with others; none where they are to stay free:
// it shares them with nobody, with ranks that may run elsewhere too or have another number of threads, or cores are
// fewer than threads. `threads`: of the node's ranks, in their order.
std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads);

// Binds this rank's threads where choose_processors() says so. Returns a line for the log, or nothing where they stay
// free. `node` is what gather_processors() gave. Collective.
std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads);

}  // namespace mantissa
