// Products from GemmArgs down to cuBLASLt, on the emulated device. The fake library computes as its descriptors say.
#pragma once

#include <gtest/gtest.h>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/gemm/choice_cublaslt.h"
#include "tests/core/cuda/fake_cublaslt.h"
#include "tests/core/io/temp_folder.h"
#include "tests/reference/gelu.h"
#include "tests/reference/linear.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {

using fake_cublaslt::state;
using reference::MatmulShape;
using testing::error_of;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};

// Small whole numbers, whose sums are exact in every dtype and order.
inline std::vector<double> whole_numbers(size_t n, int seed) {
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<double>((i * 7 + static_cast<size_t>(seed) * 3) % 5) - 2.0;
  return values;
}

// Starts `offset` elements after an aligned address, with guards around.
inline Tensor make_tensor(DType dtype, Shape shape, const std::vector<double>& values, size_t offset = 0) {
  constexpr size_t kGuardBytes = 256;
  const auto element = static_cast<size_t>(size_bytes(dtype));
  const size_t bytes = static_cast<size_t>(shape.numel()) * element;
  auto* const memory = static_cast<std::byte*>(allocate_device(bytes + offset * element + 2 * kGuardBytes));
  auto* const data = memory + kGuardBytes + offset * element;
  for (size_t i = 0; i < kGuardBytes; ++i) data[bytes + i] = std::byte{0xa5};
  dispatch(dtype, [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i)
      reinterpret_cast<T*>(data)[i] = from_float<T>(static_cast<float>(values[i]));
  });
  const auto storage = std::make_shared<Storage>(data, bytes, Device{Device::Kind::kCuda, 0}, [memory, data, bytes] {
    for (size_t i = 0; i < kGuardBytes; ++i) EXPECT_EQ(data[bytes + i], std::byte{0xa5}) << "written beyond the end";
    free_device(memory);
  });
  return Tensor(storage, dtype, shape);
}

inline std::vector<double> values_of(const Tensor& tensor, CudaStream& stream) {
  stream.synchronize();
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  dispatch(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(tensor.data<T>()[i]);
  });
  return values;
}

class GemmProducts : public ::testing::Test {
 protected:
  GemmProducts()
      : library_(fake_cublaslt::library()), stream_(std::make_shared<DeviceMemory>(0), device_properties(0)) {}

  struct Case {
    MatmulShape shape{5, 7, 3};
    DType dtype = DType::kF32, c_dtype = DType::kF32;
    std::optional<DType> bias{};
    GradientMode mode = GradientMode::kWrite;
    size_t offset = 0;  // of every operand, in elements
    std::optional<double> a_scale{}, b_scale{};
    Fp32Math fp32_math = Fp32Math::kFull;
  };

  static Tensor make_scale(const std::optional<double>& scale) {
    return scale ? make_tensor(DType::kF32, {1}, {*scale}) : Tensor();
  }

  // Computes the product and checks the result.
  void expect_right(GemmDevice& device, const Case& of) {
    const auto [shape, dtype, c_dtype, bias_dtype, mode, offset, a_scale, b_scale, fp32_math] = of;
    const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n), k = static_cast<int64_t>(shape.k);
    const std::vector<double> a = whole_numbers(shape.m * shape.k, 1), b = whole_numbers(shape.k * shape.n, 2),
                              bias = whole_numbers(shape.n, 3), before = whole_numbers(shape.m * shape.n, 4);
    const bool accumulate = mode == GradientMode::kAccumulate;
    const GemmArgs args{
        .a = make_tensor(dtype, shape.trans_a ? Shape{k, m} : Shape{m, k}, a, offset),
        .b = make_tensor(dtype, shape.trans_b ? Shape{n, k} : Shape{k, n}, b, offset),
        .c = make_tensor(c_dtype, {m, n}, accumulate ? before : std::vector<double>(before.size(), NAN), offset),
        .bias = bias_dtype ? make_tensor(*bias_dtype, {n}, bias, offset) : Tensor(),
        .a_scale = make_scale(a_scale),
        .b_scale = make_scale(b_scale),
        .trans_a = shape.trans_a ? Transpose::kYes : Transpose::kNo,
        .trans_b = shape.trans_b ? Transpose::kYes : Transpose::kNo,
        .mode = mode,
        .fp32_math = fp32_math};
    multiply(device, args, stream_);
    std::vector<double> expected = reference::matmul(a, b, shape);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] /= a_scale.value_or(1.0) * b_scale.value_or(1.0);
      expected[i] += (accumulate ? before[i] : 0.0) + (bias_dtype ? bias[i % shape.n] : 0.0);
    }
    EXPECT_EQ(values_of(args.c, stream_), expected)
        << shape.m << "x" << shape.n << "x" << shape.k << " " << name(dtype) << " -> " << name(c_dtype) << ", offset "
        << offset << (shape.trans_a ? " a^T" : "") << (shape.trans_b ? " b^T" : "") << (accumulate ? " +=" : "")
        << (a_scale ? " scaled a" : "") << (b_scale ? " scaled b" : "");
  }

  void expect_right_in_all_forms(GemmDevice& device, MatmulShape shape, size_t offset) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        shape.trans_a = trans_a;
        shape.trans_b = trans_b;
        for (const DType dtype : kFloats) {
          for (const DType c_dtype : {dtype, DType::kF32}) {
            expect_right(device, {.shape = shape, .dtype = dtype, .c_dtype = c_dtype, .offset = offset});
            for (const DType bias : kFloats) {
              expect_right(device,
                           {.shape = shape, .dtype = dtype, .c_dtype = c_dtype, .bias = bias, .offset = offset});
            }
          }
          expect_right(device, {.shape = shape, .dtype = dtype, .mode = GradientMode::kAccumulate, .offset = offset});
        }
      }
    }
  }

  struct GeluCase {
    MatmulShape shape{5, 16, 3};
    DType dtype = DType::kBF16;
    std::optional<DType> bias{};
    GemmActivation activation = GemmActivation::kGelu;
    GeluForm form = GeluForm::kTanh;
    size_t offset = 0;  // of every operand, in elements
  };

  // Computes the product and checks the result. Returns its epilogue.
  cublasLtEpilogue_t expect_gelu_right(GemmDevice& device, const GeluCase& of) {
    const auto [shape, dtype, bias_dtype, activation, form, offset] = of;
    const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n), k = static_cast<int64_t>(shape.k);
    const std::vector<double> a = whole_numbers(shape.m * shape.k, 1), b = whole_numbers(shape.k * shape.n, 2),
                              bias = whole_numbers(shape.n, 3), inputs = whole_numbers(shape.m * shape.n, 4),
                              unwritten(inputs.size(), NAN);
    const bool forward = activation == GemmActivation::kGelu;
    const GemmArgs args{.a = make_tensor(dtype, {m, k}, a, offset),
                        .b = make_tensor(dtype, {k, n}, b, offset),
                        .c = make_tensor(dtype, {m, n}, unwritten, offset),
                        .bias = bias_dtype ? make_tensor(*bias_dtype, {n}, bias, offset) : Tensor(),
                        .aux = make_tensor(dtype, {m, n}, forward ? unwritten : inputs, offset),
                        .activation = activation,
                        .form = form};
    multiply(device, args, stream_);
    std::vector<double> product = reference::matmul(a, b, shape);
    for (size_t i = 0; i < product.size(); ++i) product[i] += bias_dtype ? bias[i % shape.n] : 0.0;
    const std::vector<double> aux = values_of(args.aux, stream_), c = values_of(args.c, stream_);
    EXPECT_EQ(aux, forward ? product : inputs);
    for (size_t i = 0; i < c.size(); ++i) {
      const double expected =
          forward ? reference::gelu(product[i], form) : product[i] * reference::gelu_derivative(inputs[i], form);
      // The product is exact, then rounded once to c's dtype, with some fp32 roundings in between.
      EXPECT_NEAR(c[i], expected, (0.5 * info(format_of(dtype)).epsilon + 0x1p-19) * std::abs(expected) + 0x1p-24) << i;
    }
    return state().epilogues.back();
  }

  const CublasLt library_;
  CudaStream stream_;
  const testing::TempFolder folder_;
};

}  // namespace mantissa::cuda
