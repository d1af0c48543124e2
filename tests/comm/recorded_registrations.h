// A communicator that remembers which buffers are registered with it.
#pragma once

#include <algorithm>

#include "tests/comm/borrowed_communicator.h"

namespace mantissa::testing {

class RecordedRegistrations final : public BorrowedCommunicator {
 public:
  using BorrowedCommunicator::BorrowedCommunicator;

  std::unique_ptr<Registration> register_buffers(std::span<const Tensor> buffers) override {
    registered_.insert(registered_.end(), buffers.begin(), buffers.end());
    return std::make_unique<Held>(*this);
  }
  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    note(send);
    note(recv);
    return BorrowedCommunicator::all_to_all(send, recv, stream);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    note(send);
    note(recv);
    return BorrowedCommunicator::all_gather(send, recv, stream);
  }

  int inside() const { return inside_; }    // operands of collectives that lie in registered buffers
  int outside() const { return outside_; }  // and those that do not
  size_t registered() const { return registered_.size(); }

 private:
  struct Held final : Registration {
    explicit Held(RecordedRegistrations& given) : owner(given) {}
    ~Held() override { owner.registered_.clear(); }
    RecordedRegistrations& owner;
  };
  void note(const Tensor& operand) {
    const bool lies_inside = std::any_of(registered_.begin(), registered_.end(), [&](const Tensor& buffer) {
      return buffer.raw() <= operand.raw() &&
             operand.raw() + operand.size_bytes() <= buffer.raw() + buffer.size_bytes();
    });
    ++(lies_inside ? inside_ : outside_);
  }

  std::vector<Tensor> registered_;
  int inside_ = 0, outside_ = 0;
};

}  // namespace mantissa::testing
