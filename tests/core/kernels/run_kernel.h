// Runs kernels of the device under test, on its stream.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "core/backend/all_args.h"
#include "tests/core/kernels/device_under_test.h"
#include "tests/core/kernels/kernel_check.h"

namespace mantissa::kernel_test {

template <typename Args>
void run(const Args& args) {
  device_under_test().backend().run(args, device_under_test().stream());
}

// Expects a kernel to refuse good arguments after a change. The message contains prefix + text.
template <typename Args>
class ExpectRefused {
 public:
  explicit ExpectRefused(Args good, std::string prefix = "") : good_(std::move(good)), prefix_(std::move(prefix)) {}
  void operator()(const std::function<void(Args&)>& change, const std::string& text) const {
    Args args = good_;
    change(args);
    expect_contract_error([&] { run(args); }, prefix_ + text);
  }

 private:
  const Args good_;
  const std::string prefix_;
};

inline void fill(const Tensor& dst, float value) { run(FillArgs{.dst = dst, .value = value}); }

}  // namespace mantissa::kernel_test
