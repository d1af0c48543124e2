// NodeProcessors: which processors the ranks of a node may run on.
#pragma once

#include <sched.h>

#include <bitset>
#include <vector>

#include "comm/communicator.h"

namespace mantissa {

using ProcessorMask = std::bitset<CPU_SETSIZE>;  // by the operating system's numbers

struct NodeProcessors {
  std::vector<int> ranks;            // of this node; empty where it is not clear which those are
  std::vector<ProcessorMask> masks;  // of each; guessed where it is not clear
  size_t index = 0;                  // of this rank among them

  const ProcessorMask& own() const { return masks[index]; }
  // Ranks that may run on the same processors as this one, itself included.
  int sharing() const;
  // What each of them gets if they divide the processors; at least one.
  int share() const;
};

// By host names. They leave it open who is where if two machines have one name, or containers of one machine names of
// their own. Collective.
NodeProcessors gather_processors(Communicator& communicator);

}  // namespace mantissa
