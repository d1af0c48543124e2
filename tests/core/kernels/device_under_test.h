// The device that the kernel tests run on. A test program has one, chosen by linking device_cpu, device_cuda_emulated
// or device_cuda.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::kernel_test {

// A dtype and one of the device's ways to multiply matrices of it.
struct GemmWay {
  DType dtype;
  std::string name;
  std::function<void(const GemmArgs&)> gemm;
};

class DeviceUnderTest {
 public:
  virtual ~DeviceUnderTest() = default;
  DeviceUnderTest(const DeviceUnderTest&) = delete;
  DeviceUnderTest& operator=(const DeviceUnderTest&) = delete;

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }

  // Runs `body` on each variant of the device. Their results may differ in bits, but all must be right.
  virtual void on_each_variant(const std::function<void()>& body) = 0;
  // Runs `body` with several divisions of the work in space or time. All must give the same bits.
  virtual void on_each_schedule(const std::function<void()>& body) = 0;

  // Memory with watched ends: an access outside crashes the test, or fails it on release. It is released once the
  // stream has passed all uses.
  virtual std::shared_ptr<Storage> guarded_storage(size_t bytes) = 0;

  // The size of a problem that is large only for on_each_schedule(): `n`, or less on a slow device.
  virtual int64_t large(int64_t n) const { return n; }
  // Whether the device runs case `index` of a long list. A slow device runs a sample.
  virtual bool takes_case(size_t) const { return true; }

  // Whether attention rounds probabilities and their gradients to its operands' 16-bit dtype before it multiplies them.
  virtual bool rounds_probabilities(DType dtype) const = 0;
  // Whether it also rounds the contribution of each query head to the gradient of a shared key head.
  virtual bool rounds_head_gradients() { return false; }
  // Whether products with gelu use the freedoms that GemmArgs grants a fused kernel.
  virtual bool fuses_gelu() const = 0;
  // Whether a product is rounded to the dtype of c before a bias is added (GemmArgs).
  virtual bool rounds_before_bias() const { return false; }
  // By default, fp32, bf16 and fp16 through the backend.
  virtual std::vector<GemmWay> gemm_ways();

 protected:
  explicit DeviceUnderTest(const std::string& backend);

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
};

DeviceUnderTest& device_under_test();

}  // namespace mantissa::kernel_test
