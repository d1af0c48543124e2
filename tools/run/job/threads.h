// Threads of a rank: how many, and on which processors of the node.
#pragma once

#include <sched.h>

#include <bitset>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/base/processor_topology.h"
#include "tools/config/config.h"

namespace mantissa {

// Sets the number of threads of this rank and returns it: train.threads, or with 0 OMP_NUM_THREADS if that is a number,
// else an equal share of the processors that this rank and others of the node may use. Binds the threads, if
// train.pin_threads allows it and the CPU computes, each to a core of its own. Collective.
int set_up_threads(const Config& config, Communicator& communicator);

using ProcessorMask = std::bitset<CPU_SETSIZE>;  // by the operating system's numbers

// The processors that the ranks of a node may run on.
struct NodeProcessors {
  std::vector<int> ranks;            // of this node; empty if it is not clear which those are
  std::vector<ProcessorMask> masks;  // of each; guessed if it is not clear
  size_t index = 0;                  // of this rank among them

  const ProcessorMask& own() const { return masks[index]; }
  // Ranks that may run on the same processors as this one, itself included.
  int sharing() const;
  // An equal share of these processors; at least one.
  int share() const;
};

// By machine (Node::machine of comm/gpu_claim.h). Collective.
NodeProcessors gather_processors(Communicator& communicator);

// Processors for the threads of the rank, among those that it shares with others. None, so that threads stay free, if
// it shares them with nobody, with ranks that may also run elsewhere or have another number of threads, or if there are
// fewer cores than threads. `threads`: of the node's ranks, in their order.
std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads);

// Binds this rank's threads as choose_processors() says. Returns a line for the log; empty if they stay free.
// Collective.
std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads);

}  // namespace mantissa
