// Token ids and targets in host memory are checked before they are used as addresses.
#include <gtest/gtest.h>

#include "core/kernels/embedding/args.h"
#include "core/kernels/loss/args.h"
#include "tests/core/kernels/kernel_check.h"

namespace mantissa::cpu {
namespace {

using kernel_test::expect_contract_error;
using kernel_test::make_indices;
using kernel_test::make_tensor;
using kernel_test::make_unwritten;

TEST(IndexCheck, RefusesATokenOutsideOfTheTable) {
  const std::vector<double> zeros(12);
  const Tensor table = make_tensor(DType::kF32, {4, 3}, zeros), y = make_unwritten(DType::kF32, {2, 3});
  const auto forward = [&](std::vector<int32_t> tokens) {
    return [=] { run(EmbeddingForwardArgs{.tokens = make_indices(tokens), .token_table = table, .y = y}); };
  };
  expect_contract_error(forward({0, 4}), "[embedding] tokens must be in [0, 4), got 4 at index 1");
  expect_contract_error(forward({-1, 0}), "got -1 at index 0");
  const auto backward = [&] {
    run(EmbeddingBackwardArgs{.tokens = make_indices({0, 4}), .dy = y, .d_token_table = table});
  };
  expect_contract_error(backward, "[embedding backward] tokens must be in [0, 4), got 4 at index 1");
}

TEST(IndexCheck, RefusesATargetOutsideOfTheVocabulary) {
  const Tensor logits = make_tensor(DType::kF32, {2, 3}, std::vector<double>(6));
  const Tensor rows = make_tensor(DType::kF32, {2}, {0, 0}), sum = make_unwritten(DType::kF32, {1});
  const auto forward = [&] {
    run(CrossEntropyForwardArgs{
        .logits = logits, .targets = make_indices({0, 3}), .losses = rows, .lse = rows, .loss_sum = sum});
  };
  expect_contract_error(forward, "[cross_entropy] targets must be in [0, 3) or ignore_index -100, got 3 in row 1");
  const auto backward = [&] {
    run(CrossEntropyBackwardArgs{.logits = logits,
                                 .targets = make_indices({-1, 0}),
                                 .lse = rows,
                                 .scale = make_tensor(DType::kF32, {1}, {1.0})});
  };
  expect_contract_error(backward, "[cross_entropy backward] targets must be in [0, 3) or ignore_index -100, got -1");
}

}  // namespace
}  // namespace mantissa::cpu
