// What is refused as a product of codes.
#include <gtest/gtest.h>

#include "tests/core/kernels/gemm/gemm_codes_units.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"

namespace mantissa::kernel_test {
namespace {

TEST(GemmCodes, RefuseWhatTheUnitsDoNotTake) {
  if (!multiplies_codes()) return;
  const Tensor codes = make_unwritten(DType::kU8, {16, 32}), c = make_unwritten(DType::kBF16, {16, 16});
  const GemmArgs good{.a = codes, .b = codes, .c = c, .trans_b = Transpose::kYes};
  const auto expect_refused = [&](auto&& change, const std::string& text) {
    GemmArgs args = good;
    change(args);
    expect_contract_error([&] { run(args); }, "[gemm] " + text);
  };
  expect_refused([](GemmArgs& args) { args.a_format = args.b_format = Format::kE5M2; },
                 "codes must be of e4m3 or e5m2");
  expect_refused([](GemmArgs& args) { args.a_format = Format::kBF16; }, "codes must be of e4m3 or e5m2");
  expect_refused(
      [](GemmArgs& args) {
        args.b = make_unwritten(DType::kBF16, {16, 32});
      },
      "a and b must have one floating dtype, or be codes, got u8 and bf16");
  expect_refused(
      [](GemmArgs& args) {
        args.b = make_unwritten(DType::kU8, {32, 16});
        args.trans_b = Transpose::kNo;
      },
      "codes must be stored as (M, K) and (N, K)");
  expect_refused(
      [](GemmArgs& args) {
        args.a = make_unwritten(DType::kU8, {8, 32});
        args.c = make_unwritten(DType::kBF16, {8, 16});
      },
      "M, N and K of codes must be multiples of 16, got 8, 16 and 32");
  expect_refused(
      [](GemmArgs& args) {
        args.c = make_unwritten(DType::kF32, {16, 16});
        args.bias = make_unwritten(DType::kF32, {16});
      },
      "a bias is added to a product of codes in 16 bits only");
  expect_refused(
      [](GemmArgs& args) {
        args.activation = GemmActivation::kGelu;
        args.aux = make_unwritten(DType::kBF16, {16, 16});
      },
      "a product of codes has no activation");
}

TEST(GemmCodes, RefuseScalesOfBlocksThatDoNotFit) {
  if (!multiplies_codes()) return;
  const auto codes = [](int64_t rows, int64_t columns) { return make_unwritten(DType::kU8, {rows, columns}); };
  const auto scales = [](DType dtype, int64_t count) { return make_unwritten(dtype, {count}); };
  const GemmArgs good{.a = codes(16, 256),
                      .b = codes(128, 256),
                      .c = make_unwritten(DType::kBF16, {16, 128}),
                      .trans_b = Transpose::kYes,
                      .a_block_scales = scales(DType::kF32, 32),
                      .b_block_scales = scales(DType::kF32, 4),
                      .b_layout = BlockScaleLayout::kSquareBlocks128};
  const auto expect_refused = [&](auto&& change, const std::string& text) {
    GemmArgs args = good;
    change(args);
    expect_contract_error([&] { run(args); }, "[gemm] " + text);
  };
  expect_refused([](GemmArgs& args) { args.b_block_scales = {}; },
                 "a and b must both have block scales, or neither; got block scales of a only");
  expect_refused([](GemmArgs& args) { args.a_block_scales = {}; },
                 "a and b must both have block scales, or neither; got block scales of b only");
  expect_refused([](GemmArgs& args) { args.a_scale = make_elements<float>({1.0f}); },
                 "a product with block scales has no a_scale or b_scale");
  expect_refused([](GemmArgs& args) { args.a_layout = BlockScaleLayout::kMicroTiles; },
                 "a and b must have blocks of one length, got 32 and 128");
  expect_refused([](GemmArgs& args) { args.a_layout = BlockScaleLayout::kSquareBlocks128; },
                 "a and b must not both have square blocks");
  expect_refused([&](GemmArgs& args) { args.a_block_scales = scales(DType::kF32, 16); },
                 "a_block_scales must have shape (block_scale_count)=(32), got (16)");
  expect_refused([&](GemmArgs& args) { args.b_block_scales = scales(DType::kU8, 4); }, "b_block_scales must be fp32");
  expect_refused([&](GemmArgs& args) { args.a = codes(16, 144), args.b = codes(128, 144); },
                 "K must be a multiple of blocks of 128, got 144");
  expect_refused(
      [](GemmArgs& args) {
        args.a = make_unwritten(DType::kBF16, {16, 256}), args.b = make_unwritten(DType::kBF16, {128, 256});
      },
      "block scales belong to codes, got a and b in bf16");
  expect_refused(
      [](GemmArgs& args) {
        const Tensor longer = make_unwritten(DType::kF32, {36});
        args.a_block_scales =
            Tensor(std::make_shared<Storage>(longer.raw() + 4, 128, longer.device(), nullptr), DType::kF32, {32});
      },
      "a_block_scales must be aligned to 16 bytes");
}

}  // namespace
}  // namespace mantissa::kernel_test
