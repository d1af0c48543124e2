// Ranks as threads: runs one function per rank of a LocalGroup.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/local/local_communicator.h"

namespace mantissa {

// An exception of one rank makes the others' collectives throw, so that nobody waits for ever; the first is thrown
// here.
inline void run_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  LocalGroup group(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto fail = [&](int rank) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
    group.rank(rank).abort(1);
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(group.rank(rank));
        } catch (...) {
          fail(rank);
        }
      });
    }
  } catch (...) {  // the system refuses a thread
    fail(0);
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace mantissa
