#include "tests/core/kernels/device_under_test.h"

#include "core/backend/registry.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::kernel_test {

DeviceUnderTest::DeviceUnderTest(const std::string& backend)
    : backend_(create_backend(backend)), stream_(backend_->create_stream()) {}

std::vector<GemmWay> DeviceUnderTest::gemm_ways() {
  const auto gemm = [this](const GemmArgs& args) { backend().run(args, stream()); };
  std::vector<GemmWay> ways;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    ways.push_back({dtype, std::string(name(dtype)), gemm});
  return ways;
}

}  // namespace mantissa::kernel_test
