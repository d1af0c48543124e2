// Local transport: the ranks are threads of one process (plain unit tests), or there is one rank.
//
// A collective is posted by every rank and completed by test() or wait(): nothing moves in between, as with a transport
// that makes no progress by itself. Data is copied by the receiving rank. abort() makes the collectives of all ranks
// throw.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace mantissa {

// One communicator for each of n ranks; hand each to its own thread. They stay valid after the group is gone.
class LocalGroup {
 public:
  explicit LocalGroup(int ranks);
  ~LocalGroup();
  int size() const { return static_cast<int>(communicators_.size()); }
  Communicator& rank(int rank) { return *communicators_.at(static_cast<size_t>(rank)); }
  // Gives the communicator away; rank(rank) must not be used afterwards.
  std::unique_ptr<Communicator> take(int rank) { return std::move(communicators_.at(static_cast<size_t>(rank))); }

 private:
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

}  // namespace mantissa
