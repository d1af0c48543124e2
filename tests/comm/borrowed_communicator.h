// A communicator that hands everything on to another, which it does not own. Tests derive from it what they watch.
#pragma once

#include "comm/communicator.h"

namespace mantissa::testing {

class BorrowedCommunicator : public Communicator {
 public:
  explicit BorrowedCommunicator(Communicator& inner) : inner_(inner) {}
  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return inner_.all_to_all(send, recv, stream);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    return inner_.all_gather(send, recv, stream);
  }
  bool carries_device_memory() const override { return inner_.carries_device_memory(); }
  bool shares_node_memory() const override { return inner_.shares_node_memory(); }
  bool can_be_captured() const override { return inner_.can_be_captured(); }
  void watch_captured(Stream& stream) override { inner_.watch_captured(stream); }
  std::unique_ptr<Registration> register_buffers(std::span<const Tensor> buffers) override {
    return inner_.register_buffers(buffers);
  }
  std::shared_ptr<Storage> allocate_shared(size_t bytes, const char* what) override {
    return inner_.allocate_shared(bytes, what);
  }
  SharedRows rows_of_all(const Tensor& mine) const override { return inner_.rows_of_all(mine); }
  std::unique_ptr<Work> meet(Stream& stream) override { return inner_.meet(stream); }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    return inner_.all_gather_bytes(mine);
  }
  void barrier() override { inner_.barrier(); }
  void abort(int exit_code) override { inner_.abort(exit_code); }

 private:
  Communicator& inner_;
};

}  // namespace mantissa::testing
