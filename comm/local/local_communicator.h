// Local transport: the ranks are threads of a process (tests), or there is a single rank.
//
// Every rank posts a collective, and the last rank to do so copies the data for all. Ranks may wait for collectives in
// any order. After abort(), the collectives of all ranks throw.
#pragma once

#include "comm/communicator.h"

namespace mantissa {

// One communicator for each of n ranks; hand each to its own thread. They stay valid after the group is gone.
class LocalGroup {
 public:
  explicit LocalGroup(int ranks);
  int size() const { return static_cast<int>(communicators_.size()); }
  Communicator& rank(int rank) { return *communicators_.at(static_cast<size_t>(rank)); }
  // Gives the communicator away; do not use rank(rank) afterwards.
  std::unique_ptr<Communicator> take(int rank) { return std::move(communicators_.at(static_cast<size_t>(rank))); }

 private:
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

// Runs `body` once for each rank of a LocalGroup, each in its own thread. An exception of a rank makes the others'
// collectives throw, so that nobody waits forever. Rethrows the first exception.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body);

}  // namespace mantissa
