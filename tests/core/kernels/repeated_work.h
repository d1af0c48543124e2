// Repeats a call as the device repeats a training step: records it once and launches it again and again, or calls it
// anew if the device cannot record. A kernel must read its inputs when it runs, not when it is called.
#pragma once

#include <functional>
#include <memory>

#include "tests/core/kernels/device_under_test.h"

namespace mantissa::kernel_test {

class RepeatedWork {
 public:
  // Runs the call once, for allocations that a device cannot make within a recording.
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
