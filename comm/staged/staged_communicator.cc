#include "comm/staged/staged_communicator.h"

#include "comm/staged/staged_queue.h"
#include "core/base/check.h"

namespace mantissa {
namespace {

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& transport, Backend& backend)
      : transport_(transport), device_(backend.device()), queue_(transport, backend) {}

  std::string name() const override { return transport_.name() + " through host memory"; }
  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }
  int local_rank() const override { return transport_.local_rank(); }
  int local_size() const override { return transport_.local_size(); }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    check_all_to_all(send, recv, size(), device_of(recv));
    return start({CollectiveKind::kAllToAll, send, recv, &stream});
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    check_all_gather(send, recv, size(), device_of(recv));
    return start({CollectiveKind::kAllGather, send, recv, &stream});
  }
  bool carries_device_memory() const override { return true; }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    queue_.start_all();
    return transport_.all_gather_bytes(mine);
  }
  void barrier() override {
    queue_.start_all();
    transport_.barrier();
  }
  void abort(int exit_code) override { transport_.abort(exit_code); }

 private:
  // Where the operands of this collective must lie.
  Device device_of(const Tensor& receive) const {
    const bool on_host = !receive.defined() || receive.device().kind == Device::Kind::kCpu;
    return on_host ? Device{} : device_;
  }

  std::unique_ptr<Work> start(StagedRequest request) {
    auto work = queue_.push(std::move(request));
    queue_.advance();  // host tensors are under way at once, unless they have to wait for their turn
    return work;
  }

  Communicator& transport_;
  Device device_;
  StagedQueue queue_;
};

}  // namespace

std::unique_ptr<Communicator> create_staged_communicator(Communicator& transport, Backend& backend) {
  return std::make_unique<StagedCommunicator>(transport, backend);
}

}  // namespace mantissa
