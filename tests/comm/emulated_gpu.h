// Tensors and streams of the emulated GPU, which runs streams late and in any order.
#pragma once

#include "core/cuda/stream.h"
#include "tests/comm/communicator_contract.h"

namespace mantissa::testing {

class EmulatedGpu final : public TensorPlace {
 public:
  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<cuda::CudaStream>(memory_, cuda::device_properties(0));
  }
  Tensor make(DType dtype, Shape shape) override {
    const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
    auto storage = memory_->allocate(bytes, "test");
    std::fill_n(storage->data(), bytes, std::byte{0});
    return Tensor(std::move(storage), dtype, shape);
  }
  // The copy runs on the stream.
  void write(const std::vector<std::byte>& bytes, const Tensor& tensor, Stream& stream) override {
    const Tensor source = make(DType::kU8, Shape{static_cast<int64_t>(bytes.size())});
    std::copy(bytes.begin(), bytes.end(), source.raw());
    copy(source, tensor, stream);
    sources_.push_back(source);
  }
  std::vector<std::byte> read(const Tensor& tensor, Stream& stream) override {
    std::vector<std::byte> bytes(tensor.size_bytes());
    cuda::copy_async(bytes.data(), tensor.raw(), bytes.size(), cuda::CopyKind::kDeviceToHost,
                     cuda::as_cuda(stream).handle());
    stream.synchronize();
    return bytes;
  }
  void copy(const Tensor& source, const Tensor& destination, Stream& stream) override {
    cuda::copy_async(destination.raw(), source.raw(), source.size_bytes(), cuda::CopyKind::kDeviceToDevice,
                     cuda::as_cuda(stream).handle());
  }

 private:
  const std::shared_ptr<cuda::DeviceMemory> memory_ = std::make_shared<cuda::DeviceMemory>(0);
  std::vector<Tensor> sources_;  // kept while a stream may read them
};

}  // namespace mantissa::testing
