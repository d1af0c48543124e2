#include "comm/check_collective.h"

namespace mantissa {
namespace {

void check_operand(const char* collective, const char* operand, const Tensor& tensor) {
  MANTISSA_CHECK(tensor.defined(), "[{}] {} is undefined", collective, operand);
  MANTISSA_CHECK(tensor.device().kind == Device::Kind::kCpu, "[{}] {} must be in host memory", collective, operand);
}

void check_rows(const char* collective, const Tensor& receive, int ranks) {
  check_operand(collective, "recv", receive);
  MANTISSA_CHECK(receive.shape().rank() == 2 && receive.dim(0) == ranks, "[{}] recv must have shape ({}, n), got {}",
                 collective, ranks, receive.shape());
}

}  // namespace

void check_all_to_all(const Tensor& send, const Tensor& receive, int ranks) {
  check_operand("all_to_all", "send", send);
  check_rows("all_to_all", receive, ranks);
  MANTISSA_CHECK(send.shape() == receive.shape() && send.dtype() == receive.dtype(),
                 "[all_to_all] send must be like recv, {} of {}; got {} of {}", receive.shape(), receive.dtype(),
                 send.shape(), send.dtype());
}

void check_all_gather(const Tensor& send, const Tensor& receive, int ranks) {
  check_operand("all_gather", "send", send);
  check_rows("all_gather", receive, ranks);
  MANTISSA_CHECK(send.numel() == receive.dim(1) && send.dtype() == receive.dtype(),
                 "[all_gather] send must have {} elements of {}, a row of recv; got {} of {}", receive.dim(1),
                 receive.dtype(), send.numel(), send.dtype());
}

void check_broadcast(const Tensor& data, int root, int ranks) {
  check_operand("broadcast", "data", data);
  MANTISSA_CHECK(root >= 0 && root < ranks, "[broadcast] root must be in [0, {}), got {}", ranks, root);
}

}  // namespace mantissa
