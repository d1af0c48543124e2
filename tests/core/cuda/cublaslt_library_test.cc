// The real cuBLASLt, as far as it goes without a GPU: opening it, its symbols, its descriptors.
#include <gtest/gtest.h>

#include "core/cuda/cublaslt/gemm_library.h"
#include "core/cuda/cublaslt/gemm_problem.h"

namespace mantissa::cuda {
namespace {

TEST(CublasLtLibrary, OpensAndHasEverySymbol) {
  ASSERT_EQ(cublaslt_unusable_reason(), "");
  const CublasLt& library = cublaslt();
  EXPECT_EQ(library.version() / 10000, static_cast<size_t>(CUBLAS_VER_MAJOR));
  EXPECT_STREQ(library.status_name(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  // Every member is a function's address: none was forgotten.
  const auto* addresses = reinterpret_cast<void* const*>(&library);
  for (size_t i = 0; i < sizeof(library) / sizeof(void*); ++i) EXPECT_NE(addresses[i], nullptr) << i;
}

// The library checks the size of each attribute that is set.
TEST(CublasLtLibrary, TakesTheDescriptorsOfEveryKindOfProduct) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType c_dtype : {dtype, DType::kF32}) {
      for (const GemmEpilogue epilogue : {GemmEpilogue::kNone, GemmEpilogue::kBias, GemmEpilogue::kGeluAux,
                                          GemmEpilogue::kGeluAuxBias, GemmEpilogue::kGeluGradient}) {
        const GemmKey key{.m = 24,
                          .n = 16,
                          .k = 40,
                          .a_stride = 40,
                          .b_stride = 16,
                          .c_stride = 16,
                          .dtype = dtype,
                          .c_dtype = c_dtype,
                          .epilogue = epilogue};
        GemmDescriptors descriptors(cublaslt(), key);
        float value = 0;
        descriptors.set_addresses({.a = &value, .b = &value, .c = &value, .bias = &value, .aux = &value});
        EXPECT_NE(descriptors.operation(), nullptr);
        EXPECT_NE(descriptors.a(), nullptr);
        EXPECT_NE(descriptors.b(), nullptr);
        EXPECT_NE(descriptors.d(), nullptr);
      }
    }
  }
}

TEST(CublasLtLibrary, TakesTheDescriptorsOfProductsOfCodes) {
  for (const auto& [a, b] :
       {std::pair(Format::kE4M3, Format::kE4M3), {Format::kE5M2, Format::kE4M3}, {Format::kE4M3, Format::kE5M2}}) {
    for (const DType c_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const GemmKey key{.m = 32,
                        .n = 16,
                        .k = 48,
                        .a_stride = 48,
                        .b_stride = 48,
                        .c_stride = 16,
                        .dtype = DType::kU8,
                        .c_dtype = c_dtype,
                        .a_format = a,
                        .b_format = b,
                        .trans_b = Transpose::kYes,
                        .epilogue = c_dtype == DType::kF32 ? GemmEpilogue::kNone : GemmEpilogue::kBias,
                        .scaled = true};
      GemmDescriptors descriptors(cublaslt(), key);
      float values[8] = {};
      descriptors.set_addresses({.a = values, .b = values, .c = values, .bias = values, .scalars = values});
      EXPECT_NE(descriptors.operation(), nullptr);
    }
  }
}

}  // namespace
}  // namespace mantissa::cuda
