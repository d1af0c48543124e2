#include <gtest/gtest.h>

#include <vector>

#include "core/backend/registry.h"
#include "core/kernels/gemm/args.h"
#include "tests/core/profile/recorded_ranges.h"

namespace mantissa::testing {
namespace {

TEST(CudaBackend, EachCallIsARangeOfItsName) {
  const auto backend = create_backend("cuda");
  const auto stream = backend->create_stream();
  const Tensor a = backend->make_tensor(DType::kF32, {4, 4}, "a"), b = backend->make_tensor(DType::kF32, {4, 4}, "b");
  std::vector<float> values(16);
  const RecordedRanges ranges;
  backend->fill(a, 1.0f, *stream);
  backend->run(GemmArgs{.a = a, .b = a, .c = b}, *stream);
  backend->download(b, values.data(), *stream);
  EXPECT_EQ(ranges.events(), (std::vector<std::string>{"begin op fill", "end op fill", "begin op gemm", "end op gemm",
                                                       "begin op download", "end op download"}));
}

}  // namespace
}  // namespace mantissa::testing
