// Attention through a cache of keys and values in fp64.
#include <gtest/gtest.h>

#include "core/kernels/attention/args.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/attention.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

TEST(Fp64Kernels, AttentionThroughACache) {
  const reference::AttentionCase c{
      .batch = 1, .length = 7, .heads = 4, .kv_heads = 2, .dim = 8, .scale = 0.25, .causal = true, .window = 5};
  const std::vector<double> qkv = reference::random_values(static_cast<int64_t>(c.qkv_size()), 1, -2.0, 2.0);
  const AttentionShape shape{
      .batch = 2, .sequence_length = 9, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .scale = 0.25f, .window = 5};
  const Tensor input = make_tensor(DType::kF64, {7, 64}, qkv), out = make_unwritten(DType::kF64, {7, 32}),
               cache = make_unwritten(DType::kF64, {2, 4, 9, 8}), sequences = make_indices(std::vector<int32_t>(7, 1)),
               positions = make_indices({0, 1, 2, 3, 4, 5, 6});
  run(AttentionAppendArgs{
      .qkv = input, .sequences = sequences, .positions = positions, .cache = cache, .shape = shape});
  run(AttentionDecodeArgs{
      .qkv = input, .sequences = sequences, .positions = positions, .cache = cache, .out = out, .shape = shape});
  const std::vector<double> found = values_of(out), expected = reference::attention_forward(c, qkv).out;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-13) << i;  // sums of a few terms
}

}  // namespace
}  // namespace mantissa::kernel_test
