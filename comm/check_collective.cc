#include "comm/check_collective.h"

#include <fmt/core.h>

#include <string>

namespace mantissa {
namespace {

std::string to_text(Device device) {
  return device.kind == Device::Kind::kCpu ? "host memory" : fmt::format("the memory of GPU {}", device.index);
}

void check_operand(const char* collective, const char* operand, const Tensor& tensor, Device device) {
  MANTISSA_CHECK(tensor.defined(), "[{}] {} is undefined", collective, operand);
  const Device got = tensor.device();
  const bool both_on_host = got.kind == Device::Kind::kCpu && device.kind == Device::Kind::kCpu;
  MANTISSA_CHECK(both_on_host || got == device, "[{}] {} must be in {}, it is in {}", collective, operand,
                 to_text(device), to_text(got));
}

void check_rows(const char* collective, const Tensor& receive, int ranks, Device device) {
  check_operand(collective, "recv", receive, device);
  MANTISSA_CHECK(receive.shape().rank() == 2 && receive.dim(0) == ranks, "[{}] recv must have shape ({}, n), got {}",
                 collective, ranks, receive.shape());
}

}  // namespace

void check_all_to_all(const Tensor& send, const Tensor& receive, int ranks, Device device) {
  check_operand("all_to_all", "send", send, device);
  check_rows("all_to_all", receive, ranks, device);
  MANTISSA_CHECK(send.shape() == receive.shape() && send.dtype() == receive.dtype(),
                 "[all_to_all] send must be like recv, {} of {}; got {} of {}", receive.shape(), receive.dtype(),
                 send.shape(), send.dtype());
}

void check_all_gather(const Tensor& send, const Tensor& receive, int ranks, Device device) {
  check_operand("all_gather", "send", send, device);
  check_rows("all_gather", receive, ranks, device);
  MANTISSA_CHECK(send.numel() == receive.dim(1) && send.dtype() == receive.dtype(),
                 "[all_gather] send must have {} elements of {}, a row of recv; got {} of {}", receive.dim(1),
                 receive.dtype(), send.numel(), send.dtype());
}

}  // namespace mantissa
