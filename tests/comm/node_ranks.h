// Ranks as threads that share memory as the ranks of one node do: tests of what reads it in place.
#pragma once

#include <thread>

#include "comm/node/node_exchange.h"
#include "tests/comm/borrowed_communicator.h"

namespace mantissa::testing {

class NodeCommunicator : public BorrowedCommunicator {
 public:
  // Collective. `inner`'s ranks are those of the node.
  explicit NodeCommunicator(Communicator& inner)
      : BorrowedCommunicator(inner),
        exchanges_(NodeRanks{.rank = inner.rank(), .size = inner.size(), .gather = [&inner](auto mine) {
                               return inner.all_gather_bytes(mine);
                             }}) {}

  std::shared_ptr<Storage> allocate_shared(size_t bytes, const char*) override { return exchanges_.allocate(bytes); }
  SharedRows rows_of_all(const Tensor& mine) const override { return exchanges_.rows_of_all(mine); }
  std::unique_ptr<Work> meet(Stream&) override {
    return std::make_unique<Meeting>(exchanges_, exchanges_.start(meeting_of(exchanges_.node())));
  }

 private:
  class Meeting final : public Work {
   public:
    Meeting(NodeExchanges& exchanges, uint64_t number) : exchanges_(exchanges), number_(number) {}
    bool test() override {
      exchanges_.advance();
      return exchanges_.done(number_);
    }
    void wait() override {
      while (!test()) std::this_thread::yield();
    }

   private:
    NodeExchanges& exchanges_;
    uint64_t number_;
  };

  NodeExchanges exchanges_;
};

}  // namespace mantissa::testing
