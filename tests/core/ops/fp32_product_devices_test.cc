// The CPU and the emulated GPU give bit-identical products of fp32 numbers, because their products of the parts are the
// same.
#include <gtest/gtest.h>

#include "core/backend/registry.h"
#include "core/kernels/gemm/args.h"
#include "core/ops/fp32_product.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

constexpr int64_t kM = 37, kN = 29, kK = 301;

std::vector<float> product_on(const char* device, Fp32Products products) {
  const auto backend = create_backend(device);
  const auto stream = backend->create_stream();
  Arena arena(backend->reserve(size_t{1} << 20));
  const UniformPrecision policy;
  DerivedWeights weights(*backend);
  const auto tensor = [&](Shape shape, uint64_t seed) {
    const Tensor result = backend->make_tensor(DType::kF32, shape, "test");
    const std::vector<float> values = testing::normal_values(result.numel(), seed);
    backend->upload(values.data(), result, *stream);
    return result;
  };
  Tape tape(*backend, *stream, arena, policy, weights, {.mode = TapeMode::kEvaluation});
  const Tensor c = tensor({kM, kN}, 3);
  multiply(tape,
           {.a = tensor({kK, kM}, 1),
            .b = tensor({kK, kN}, 2),
            .c = c,
            .trans_a = Transpose::kYes,
            .mode = GradientMode::kAccumulate},
           products);
  std::vector<float> values(static_cast<size_t>(kM * kN));
  backend->download(c, values.data(), *stream);
  return values;
}

TEST(Fp32ProductDevices, CpuAndEmulatedGpuAgreeBitForBit) {
  std::vector<std::vector<float>> found;
  for (const Fp32Products products : kAllFp32Products) {
    found.push_back(product_on("cpu", products));
    EXPECT_EQ(product_on("cuda", products), found.back()) << name(products);
  }
  for (size_t i = 1; i < found.size(); ++i) EXPECT_NE(found[i], found[i - 1]);
}

}  // namespace
}  // namespace mantissa
