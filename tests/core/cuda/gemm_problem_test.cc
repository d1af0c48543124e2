#include "core/cuda/cublaslt/gemm_problem.h"

#include <gtest/gtest.h>

#include <set>

namespace mantissa::cuda {
namespace {

TEST(GemmProblem, AlignmentIsThePowerOfTwoThatDividesTheAddress) {
  const auto of = [](uintptr_t address) { return gemm_alignment(reinterpret_cast<const void*>(address)); };
  EXPECT_EQ(of(0), 0u);
  EXPECT_EQ(of(0x1001), 1u);
  EXPECT_EQ(of(0x1002), 2u);
  EXPECT_EQ(of(0x1004), 4u);
  EXPECT_EQ(of(0x1018), 8u);
  EXPECT_EQ(of(0x1010), 16u);
  EXPECT_EQ(of(0x1000), 16u);
}

TEST(GemmProblem, DifferentKeysHaveDifferentTexts) {
  const GemmKey key{.m = 2, .n = 3, .k = 4, .a_stride = 4, .b_stride = 3, .c_stride = 3};
  std::vector<GemmKey> keys(1, key);
  for (int64_t GemmKey::*extent :
       {&GemmKey::m, &GemmKey::n, &GemmKey::k, &GemmKey::a_stride, &GemmKey::b_stride, &GemmKey::c_stride}) {
    keys.emplace_back(key).*extent = 99;
  }
  for (uint32_t GemmKey::*alignment : {&GemmKey::a_alignment, &GemmKey::b_alignment, &GemmKey::c_alignment,
                                       &GemmKey::bias_alignment, &GemmKey::aux_alignment}) {
    keys.emplace_back(key).*alignment = 8;
  }
  keys.emplace_back(key).dtype = DType::kBF16;
  keys.emplace_back(key).c_dtype = DType::kBF16;
  keys.emplace_back(key).trans_a = Transpose::kYes;
  keys.emplace_back(key).trans_b = Transpose::kYes;
  keys.emplace_back(key).fp32_math = Fp32Math::kTf32;
  keys.emplace_back(key).mode = GradientMode::kAccumulate;
  keys.emplace_back(key).scaled = true;
  for (const GemmEpilogue epilogue :
       {GemmEpilogue::kBias, GemmEpilogue::kGeluAux, GemmEpilogue::kGeluAuxBias, GemmEpilogue::kGeluGradient}) {
    keys.emplace_back(key).epilogue = epilogue;
  }
  keys.emplace_back(key).dtype = DType::kU8;
  keys.emplace_back(keys.back()).a_format = Format::kE5M2;
  keys.emplace_back(keys[keys.size() - 2]).b_format = Format::kE5M2;
  for (const BlockScaleLayout layout :
       {BlockScaleLayout::kRowBlocks128, BlockScaleLayout::kSquareBlocks128, BlockScaleLayout::kMicroTiles}) {
    keys.emplace_back(keys.back()).a_blocks = layout;
    keys.emplace_back(keys.back()).b_blocks = layout;
  }
  std::set<std::string> texts;
  for (const GemmKey& each : keys) texts.insert(to_text(each));
  EXPECT_EQ(texts.size(), keys.size());
  EXPECT_EQ(std::set<GemmKey>(keys.begin(), keys.end()).size(), keys.size());
}

TEST(GemmProblem, MessagesNameShapeDTypesAndAlignment) {
  const GemmKey key{.m = 8,
                    .n = 50257,
                    .k = 768,
                    .a_stride = 768,
                    .b_stride = 768,
                    .c_stride = 50257,
                    .dtype = DType::kBF16,
                    .c_dtype = DType::kF32,
                    .trans_b = Transpose::kYes,
                    .a_alignment = 16,
                    .b_alignment = 2,
                    .c_alignment = 4};
  EXPECT_EQ(describe(key),
            "8 x 50257 x 768 (M x N x K), bf16 -> fp32, b transposed, epilogue none, rows of a, b and c 768, 768 and "
            "50257 elements apart, addresses multiples of 16, 2 and 4 bytes");
  GemmKey scaled = key;
  scaled.scaled = true;
  EXPECT_NE(describe(scaled).find(", b transposed, scaled, epilogue none"), std::string::npos) << describe(scaled);
  GemmKey codes = key;
  codes.dtype = DType::kU8;
  codes.a_format = Format::kE5M2;
  EXPECT_NE(describe(codes).find("(M x N x K), e5m2 x e4m3 -> fp32, "), std::string::npos) << describe(codes);
}

}  // namespace
}  // namespace mantissa::cuda
