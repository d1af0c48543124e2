// AbsentRanks: the first of some ranks whose others do not exist. Collectives move nothing and are told of.
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace mantissa {

class AbsentRanks final : public Communicator {
 public:
  // Bytes that this rank sends to others in one collective, as ProfilingCommunicator counts them.
  using Sink = std::function<void(const char* collective, double bytes)>;
  AbsentRanks(int ranks, Sink sink) : Communicator({.size = ranks, .local_size = ranks}), sink_(std::move(sink)) {}

  std::string name() const override { return "absent"; }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override;
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override;
  // Every rank's bytes are this one's.
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override;
  void barrier() override {}
  // There is nobody to tell: Error.
  void abort(int exit_code) override;

 private:
  const Sink sink_;
};

}  // namespace mantissa
