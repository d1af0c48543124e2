// A call that the device repeats as it repeats a training step: recorded once and launched again and again where work
// can be recorded, else made anew. What a kernel is to read when it runs it must not read when it is called.
#pragma once

#include <functional>
#include <memory>

#include "tests/core/kernels/device_under_test.h"

namespace mantissa::kernel_test {

class RepeatedWork {
 public:
  // Runs it once, for what a device can allocate outside of a recording only.
  explicit RepeatedWork(std::function<void()> call) : call_(std::move(call)) {
    call_();
    DeviceUnderTest& device = device_under_test();
    device.stream().synchronize();
    if (device.backend().device().kind == Device::Kind::kCpu) return;
    captured_ = device.backend().capture(device.stream(), call_);
  }

  void run() {
    if (captured_ != nullptr) {
      captured_->launch();
    } else {
      call_();
    }
  }

 private:
  std::function<void()> call_;
  std::unique_ptr<CapturedWork> captured_;
};

}  // namespace mantissa::kernel_test
