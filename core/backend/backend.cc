#include "core/backend/backend.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/reduction/args.h"

namespace mantissa {

std::unique_ptr<CapturedWork> Backend::capture(Stream&, const std::function<void()>&) {
  throw ConfigError(fmt::format("work of this device cannot be captured and repeated: {}", describe()));
}

void Backend::fill(const Tensor& dst, float value, Stream& stream) {
  run(FillArgs{.dst = dst, .value = value}, stream);
}

Tensor Backend::make_tensor(DType dtype, Shape shape, const char* what) {
  const size_t bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
  return Tensor(allocate(bytes, what), dtype, shape);
}

Tensor Backend::make_stats(Stream& stream) {
  Tensor record = make_tensor(DType::kU8, Shape{static_cast<int64_t>(sizeof(TensorStats))}, "tensor statistics");
  const TensorStats empty;
  upload(&empty, record, stream);
  return record;
}

TensorStats Backend::read_stats(const Tensor& record, Stream& stream) {
  TensorStats stats;
  download(record, &stats, stream);
  return stats;
}

double Backend::read_number(const Tensor& tensor, Stream& stream) {
  MANTISSA_CHECK(tensor.numel() == 1 && tensor.dtype() == wide_of(tensor.dtype()),
                 "[read_number] expected one number of fp32 or fp64, got {} of {}", tensor.shape(), tensor.dtype());
  float narrow = 0.0f;
  double wide = 0.0;
  const bool is_narrow = tensor.dtype() == DType::kF32;
  download(tensor, is_narrow ? static_cast<void*>(&narrow) : &wide, stream);
  return is_narrow ? static_cast<double>(narrow) : wide;
}

}  // namespace mantissa
