// A GPU. Its variants are the implementations of attention. A schedule is one more run, since a GPU never times its
// work the same way twice. MANTISSA_TEST_SAMPLE reduces the tests to the emulated GPU's sample, because a GPU is as
// slow under compute-sanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/cuda/stream.h"
#include "tests/core/kernels/attention/attention_choice_scope.h"
#include "tests/core/kernels/device_under_test.h"

namespace mantissa::kernel_test {
namespace {

constexpr std::byte kGuard{0xa5};
constexpr size_t kGuardBytes = 1024;  // on either side; a multiple of every allocation's alignment

class Cuda final : public DeviceUnderTest {
 public:
  Cuda() : DeviceUnderTest("cuda") {}

  void on_each_variant(const std::function<void()>& body) override {
    for (const AttentionChoice choice : {AttentionChoice::kOwn, AttentionChoice::kAuto}) {
      SCOPED_TRACE(choice == AttentionChoice::kOwn ? "our attention" : "attention by our kernels or cuDNN");
      const AttentionChoiceScope scope(stream(), choice);
      body();
    }
  }

  void on_each_schedule(const std::function<void()>& body) override {
    for (int run = 0; run < (sample_ ? 2 : 4); ++run) {
      SCOPED_TRACE(::testing::Message() << "run " << run);
      body();
    }
  }

  std::shared_ptr<Storage> guarded_storage(size_t bytes) override {
    const std::shared_ptr<Storage> whole = backend().allocate(bytes + 2 * kGuardBytes, "kernel test");
    const auto guard = [whole](size_t offset) {
      return Tensor(whole, DType::kU8, {static_cast<int64_t>(kGuardBytes)}, offset);
    };
    const Tensor front = guard(0), back = guard(kGuardBytes + bytes);
    const std::vector<std::byte> expected(kGuardBytes, kGuard);
    backend().upload(expected.data(), front, stream());
    backend().upload(expected.data(), back, stream());
    return std::make_shared<Storage>(whole->data() + kGuardBytes, bytes, backend().device(), [this, front, back] {
      check_guard(front, "before");
      check_guard(back, "after");
    });
  }

  // Small, but still several blocks.
  int64_t large(int64_t n) const override { return sample_ ? std::min(n, std::max<int64_t>(67, n / 16 | 1)) : n; }
  // No list has a dimension of seven values or a multiple of seven, so the sample covers all values of each dimension.
  bool takes_case(size_t index) const override { return !sample_ || index % 7 == 0; }

  bool rounds_probabilities(DType) const override { return true; }
  bool fuses_gelu() const override { return true; }
  bool rounds_before_bias() const override { return true; }
  // For cuDNN's backward pass, which runs only if requested by name.
  bool rounds_head_gradients() override {
    return cuda::as_cuda(stream()).attention_choice() == AttentionChoice::kCudnn;
  }

 private:
  // Waits for the stream. A release calls this, so it must not throw.
  void check_guard(const Tensor& guard, const char* where) {
    try {
      std::vector<std::byte> bytes(kGuardBytes);
      backend().download(guard, bytes.data(), stream());
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kGuard; }))
          << "a kernel wrote " << where << " its tensor";
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  const bool sample_ = std::getenv("MANTISSA_TEST_SAMPLE") != nullptr;
};

}  // namespace

DeviceUnderTest& device_under_test() {
  static Cuda device;
  return device;
}

}  // namespace mantissa::kernel_test
