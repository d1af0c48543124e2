// The CPU. Its variants are the compiled instruction sets that this machine has; its schedules are 1 to 4 threads.
// Under sanitizers, MANTISSA_TEST_SAMPLE reduces the tests to the emulated GPU's sample (.bazelrc).
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/base/thread_team.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "hwy/highway.h"
#include "tests/core/kernels/device_under_test.h"
#include "tests/core/kernels/guarded_host_storage.h"

namespace mantissa::kernel_test {
namespace {

class Cpu final : public DeviceUnderTest {
 public:
  Cpu() : DeviceUnderTest("cpu") {}

  void on_each_variant(const std::function<void()>& body) override {
    const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
    ASSERT_FALSE(targets.empty());
    for (const int64_t target : targets) {
      SCOPED_TRACE(hwy::TargetName(target));
      hwy::SetSupportedTargetsForTest(target);
      body();
      hwy::SetSupportedTargetsForTest(0);
    }
  }

  void on_each_schedule(const std::function<void()>& body) override {
    const int usual = threads();
    for (const int count : {1, 2, 3, 4}) {
      SCOPED_TRACE(::testing::Message() << count << " threads");
      set_threads(count);
      body();
    }
    set_threads(usual);
  }

  std::shared_ptr<Storage> guarded_storage(size_t bytes) override {
    return guarded_host_storage(bytes, backend().device(), stream());
  }

  // No list has a dimension of seven values or a multiple of seven, so the sample covers all values of each dimension.
  bool takes_case(size_t index) const override { return !sample_ || index % 7 == 0; }

  bool rounds_probabilities(DType dtype) const override {
    return dtype == DType::kBF16 && cpu::preferred_bf16_gemm() == cpu::Bf16Gemm::kDotProducts;
  }
  bool fuses_gelu() const override { return false; }

  std::vector<GemmWay> gemm_ways() override {
    const auto way = [](cpu::Bf16Gemm bf16) { return [bf16](const GemmArgs& args) { cpu::gemm(args, bf16); }; };
    const cpu::Bf16Gemm preferred = cpu::preferred_bf16_gemm();
    std::vector<GemmWay> ways{{DType::kF32, "fp32", way(preferred)},
                              {DType::kF16, "fp16", way(preferred)},
                              {DType::kBF16, "widened bf16", way(cpu::Bf16Gemm::kWidened)}};
    if (cpu::is_possible(cpu::Bf16Gemm::kDotProducts)) {
      ways.push_back({DType::kBF16, "bf16 dot products", way(cpu::Bf16Gemm::kDotProducts)});
    }
    if (cpu::is_possible(cpu::Bf16Gemm::kLibrary)) {
      ways.push_back({DType::kBF16, "oneDNN's bf16", way(cpu::Bf16Gemm::kLibrary)});
    }
    return ways;
  }

 private:
  const bool sample_ = std::getenv("MANTISSA_TEST_SAMPLE") != nullptr;
};

}  // namespace

DeviceUnderTest& device_under_test() {
  static Cpu device;
  return device;
}

}  // namespace mantissa::kernel_test
