// A communicator that notes its collectives in the black box.
#include <utility>

#include "comm/communicator.h"
#include "tools/run/guard/black_box.h"

namespace mantissa {
namespace {

class WatchedWork final : public Work {
 public:
  WatchedWork(std::unique_ptr<Work> work, const char* name, uint64_t number, BlackBox& box)
      : work_(std::move(work)), name_(name), number_(number), box_(box) {
    if (!test()) box_.leave_collective(name_, number_);
  }

  bool test() override {
    const bool done = work_->test();
    if (done) end();
    return done;
  }
  void wait() override {
    if (test()) return;
    box_.await_collective(name_, number_);
    work_->wait();
    end();
  }

 private:
  void end() {
    if (!std::exchange(has_ended_, true)) box_.end_collective(name_, number_);
  }

  const std::unique_ptr<Work> work_;
  const char* const name_;
  const uint64_t number_;
  BlackBox& box_;
  bool has_ended_ = false;
};

class WatchedCommunicator final : public ForwardingCommunicator {
  using Base = ForwardingCommunicator;

 public:
  WatchedCommunicator(Communicator& inner, BlackBox& box) : Base(inner), box_(box) {}
  WatchedCommunicator(std::unique_ptr<Communicator> group, BlackBox& box) : Base(std::move(group)), box_(box) {}

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return start("all_to_all", send.size_bytes(), [&] { return Base::all_to_all(send, recv, stream); });
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return start("all_gather", send.size_bytes(), [&] { return Base::all_gather(send, recv, stream); });
  }
  std::unique_ptr<Work> node_barrier(Stream& stream) override {
    return start("node_barrier", 0, [&] { return Base::node_barrier(stream); });
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    const Blocking call(box_, "all_gather_bytes", mine.size());
    return Base::all_gather_bytes(mine);
  }
  void barrier() override {
    const Blocking call(box_, "barrier", 0);
    Base::barrier();
  }
  // All ranks call the collectives of their groups alike, so that their numbers tell who is behind.
  std::unique_ptr<Communicator> split(int color, int members) override {
    const Blocking call(box_, "split", 0);
    return std::make_unique<WatchedCommunicator>(Base::split(color, members), box_);
  }

 private:
  class Blocking {
   public:
    Blocking(BlackBox& box, const char* name, size_t bytes)
        : box_(box), name_(name), number_(box.begin_collective(name, static_cast<int64_t>(bytes))) {}
    ~Blocking() { box_.end_collective(name_, number_); }

   private:
    BlackBox& box_;
    const char* const name_;
    const uint64_t number_;
  };

  template <typename Start>
  std::unique_ptr<Work> start(const char* name, size_t bytes, Start start) {
    const uint64_t number = box_.begin_collective(name, static_cast<int64_t>(bytes));
    return std::make_unique<WatchedWork>(start(), name, number, box_);
  }

  BlackBox& box_;
};

}  // namespace

std::unique_ptr<Communicator> create_watched_communicator(Communicator& communicator, BlackBox& box) {
  return std::make_unique<WatchedCommunicator>(communicator, box);
}

}  // namespace mantissa
