// The device that the kernel tests run on. There is one in a test program, chosen by the library that it links:
// device_cpu, device_cuda_emulated or device_cuda.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::kernel_test {

// A dtype and a way in which the device multiplies matrices of it.
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

  // Runs `body` on each variant of the device. Their results may differ in bits, and all must be right.
  virtual void on_each_variant(const std::function<void()>& body) = 0;
  // Runs `body` with each of several divisions of the work in space or time. All must give the same bits.
  virtual void on_each_schedule(const std::function<void()>& body) = 0;

  // Memory whose end and beginning are watched: an access outside of it crashes the test or fails it on release.
  // Released when the stream has passed everything that may use it.
  virtual std::shared_ptr<Storage> guarded_storage(size_t bytes) = 0;

  // The size of a problem that is large only to be divided, so that on_each_schedule() has an effect: `n`, or less
  // where the device is slow.
  virtual int64_t large(int64_t n) const { return n; }
  // Whether the device runs case number `index` of a long list: a slow one takes a sample.
  virtual bool takes_case(size_t) const { return true; }

  // Whether attention rounds probabilities and their gradients to a 16-bit dtype of its operands before it multiplies
  // them.
  virtual bool rounds_probabilities(DType dtype) const = 0;
  // Whether it also rounds what each of several query heads adds to the gradient of their key head.
  virtual bool rounds_head_gradients() { return false; }
  // Whether products with gelu take the liberties that GemmArgs allows a device with one kernel for both.
  virtual bool fuses_gelu() const = 0;
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
