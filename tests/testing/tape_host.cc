#include "tests/testing/tape_host.h"

#include "core/kernels/elementwise/args.h"

namespace mantissa::testing {

Tensor TapeHost::tensor(const std::vector<float>& values, Shape shape, DType dtype) {
  Tensor wide = backend_->make_tensor(DType::kF32, shape, "test");
  MANTISSA_CHECK(wide.numel() == static_cast<int64_t>(values.size()), "[test] {} values for {}", values.size(), shape);
  backend_->upload(values.data(), wide, *stream_);
  if (dtype == DType::kF32) return wide;
  Tensor narrow = backend_->make_tensor(dtype, shape, "test");
  backend_->run(CastArgs{.src = wide, .dst = narrow}, *stream_);
  return narrow;
}

std::vector<float> TapeHost::values(const Tensor& tensor) {
  Tensor wide = backend_->make_tensor(DType::kF32, tensor.shape(), "test");
  backend_->run(CastArgs{.src = tensor, .dst = wide}, *stream_);
  std::vector<float> result(static_cast<size_t>(tensor.numel()));
  backend_->download(wide, result.data(), *stream_);
  return result;
}

void TapeHost::set_weight(Parameter& parameter, const std::vector<float>& values) {
  backend_->run(CastArgs{.src = tensor(values, parameter.shape), .dst = parameter.weight}, *stream_);
  ++parameter.version;
}

}  // namespace mantissa::testing
