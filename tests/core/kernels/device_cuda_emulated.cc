// The emulated GPU. Variants and schedules are seeds. A seed determines every order that a GPU leaves open: of blocks,
// of threads in a block, of streams.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/cuda/emulation/faults.h"
#include "tests/core/kernels/device_under_test.h"
#include "tests/core/kernels/guarded_host_storage.h"

namespace mantissa::kernel_test {
namespace {

class EmulatedCuda final : public DeviceUnderTest {
 public:
  EmulatedCuda() : DeviceUnderTest("cuda") {}

  void on_each_variant(const std::function<void()>& body) override { on_seeds({0, 1}, body); }
  void on_each_schedule(const std::function<void()>& body) override { on_seeds({0, 100}, body); }

  // Device memory is host memory here.
  std::shared_ptr<Storage> guarded_storage(size_t bytes) override {
    return guarded_host_storage(bytes, backend().device(), stream());
  }

  // Small, but still several blocks.
  int64_t large(int64_t n) const override { return std::min(n, std::max<int64_t>(67, n / 16 | 1)); }
  // No list has a dimension of seven values or a multiple of seven, so the sample covers all values of each dimension.
  bool takes_case(size_t index) const override { return index % 7 == 0; }

  bool rounds_probabilities(DType) const override { return true; }
  bool fuses_gelu() const override { return false; }

 private:
  // Distances are from the present seed, which the environment can choose.
  void on_seeds(std::initializer_list<uint64_t> distances, const std::function<void()>& body) {
    const uint64_t usual = cuda::emulation::seed();
    for (const uint64_t distance : distances) {
      SCOPED_TRACE(::testing::Message() << "seed " << usual + distance);
      cuda::emulation::set_seed(usual + distance);
      body();
    }
    cuda::emulation::set_seed(usual);
  }
};

}  // namespace

DeviceUnderTest& device_under_test() {
  static EmulatedCuda device;
  return device;
}

}  // namespace mantissa::kernel_test
