// Descriptors and operands of cuBLASLt, as the stand-in reads them back through the real library: attributes, matrices
// in column-major order, scalars, and scale factors of codes.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/tensor/format.h"
#include "core/tensor/half.h"

namespace mantissa::cuda::fake_cublaslt {

template <typename Function>
Function real(const char* name) {
  static void* const library = dlopen(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR).c_str(), RTLD_NOW);
  if (library == nullptr || dlsym(library, name) == nullptr) throw std::runtime_error(name);
  return reinterpret_cast<Function>(dlsym(library, name));
}

inline void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

template <typename Value>
Value read(const auto& function, const auto& object, auto attribute, const char* what) {
  Value value{};
  size_t written = 0;
  expect(function(object, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS, what);
  return value;
}

template <typename Value>
Value get(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute) {
  static const auto function = real<decltype(&cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
  return read<Value>(function, layout, attribute, "layout attribute");
}

template <typename Value>
Value get(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute) {
  static const auto function = real<decltype(&cublasLtMatmulDescGetAttribute)>("cublasLtMatmulDescGetAttribute");
  return read<Value>(function, operation, attribute, "operation attribute");
}

template <typename Value>
Value get(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute) {
  static const auto function =
      real<decltype(&cublasLtMatmulPreferenceGetAttribute)>("cublasLtMatmulPreferenceGetAttribute");
  return read<Value>(function, preference, attribute, "preference");
}

inline bool is_code(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

inline size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : is_code(type) ? 1 : 2; }

struct Matrix {
  std::byte* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;
  cudaDataType type = CUDA_R_32F;

  Matrix(const void* address, cublasLtMatrixLayout_t layout)
      : data(static_cast<std::byte*>(const_cast<void*>(address))),
        rows(static_cast<int64_t>(get<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_ROWS))),
        columns(static_cast<int64_t>(get<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_COLS))),
        stride(get<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD)),
        type(static_cast<cudaDataType>(get<uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE))) {
    expect(get<int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_ORDER) == CUBLASLT_ORDER_COL, "column-major");
    expect(stride >= rows, "the stride covers a column");
  }
  size_t stride_bytes() const { return static_cast<size_t>(stride) * size_of(type); }
  std::byte* at(int64_t row, int64_t column) const {
    return data + static_cast<size_t>(column) * stride_bytes() + static_cast<size_t>(row) * size_of(type);
  }
};

// The values of all codes.
inline const std::array<float, 256>& values_of(cudaDataType type) {
  const auto list = [](Format format) {
    std::array<float, 256> values{};
    for (uint32_t code = 0; code < 256; ++code) values[code] = decode(format, code);
    return values;
  };
  static const std::array<float, 256> e4m3 = list(Format::kE4M3), e5m2 = list(Format::kE5M2);
  return type == CUDA_R_8F_E4M3 ? e4m3 : e5m2;
}

inline float load(const std::byte* from, cudaDataType type) {
  if (is_code(type)) return values_of(type)[static_cast<size_t>(*from)];
  if (type == CUDA_R_32F) return *reinterpret_cast<const float*>(from);
  if (type == CUDA_R_16BF) return to_float(*reinterpret_cast<const BFloat16*>(from));
  return to_float(*reinterpret_cast<const Float16*>(from));
}

// The columns of the matrix, one after the other; its rows, if not `by_columns`.
inline std::vector<float> lines(const Matrix& matrix, bool by_columns) {
  const int64_t count = by_columns ? matrix.columns : matrix.rows, length = by_columns ? matrix.rows : matrix.columns;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count * length));
  for (int64_t line = 0; line < count; ++line) {
    for (int64_t l = 0; l < length; ++l) {
      values.push_back(load(by_columns ? matrix.at(l, line) : matrix.at(line, l), matrix.type));
    }
  }
  return values;
}

inline void store(std::byte* to, cudaDataType type, float value) {
  if (type == CUDA_R_32F) {
    *reinterpret_cast<float*>(to) = value;
  } else if (type == CUDA_R_16BF) {
    *reinterpret_cast<BFloat16*>(to) = from_float<BFloat16>(value);
  } else {
    *reinterpret_cast<Float16*>(to) = from_float<Float16>(value);
  }
}

// The matrix beside D that gelu epilogues write or read: D's type and shape with its own row stride.
struct Aux {
  std::byte* data = nullptr;
  int64_t stride = 0;

  std::byte* at(int64_t row, int64_t column, cudaDataType type) const {
    return data + static_cast<size_t>(column * stride + row) * size_of(type);
  }
};

// alpha or beta. A value on the host is read when the product is queued, one on the device when it runs.
struct Scalar {
  const float* on_device = nullptr;
  float on_host = 0;

  Scalar(const void* address, cublasLtMatmulDesc_t operation) {
    const auto mode = get<int32_t>(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE);
    expect(mode == CUBLASLT_POINTER_MODE_HOST || mode == CUBLASLT_POINTER_MODE_DEVICE, "pointer mode");
    on_device = static_cast<const float*>(mode == CUBLASLT_POINTER_MODE_DEVICE ? address : nullptr);
    if (on_device == nullptr) on_host = *static_cast<const float*>(address);
  }
  float value() const { return on_device != nullptr ? *on_device : on_host; }
};

// Scale factors of an operand of codes, read when the product runs; 1 if absent. The library's "outer" dimension is the
// operand's columns, each as long as the sum.
struct Factors {
  const void* address = nullptr;
  cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int64_t length = 0, outer = 0;

  Factors(cublasLtMatmulDesc_t operation, const Matrix& operand, cublasLtMatmulDescAttributes_t pointer,
          cublasLtMatmulDescAttributes_t scale_mode)
      : address(get<const void*>(operation, pointer)),
        mode(static_cast<cublasLtMatmulMatrixScale_t>(get<int32_t>(operation, scale_mode))),
        length(operand.rows),
        outer(operand.columns) {
    expect(reinterpret_cast<uintptr_t>(address) % 16 == 0, "address of factors");
    expect(!is_blocks() || address != nullptr, "factors of blocks");
  }
  bool is_blocks() const { return mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; }
  // The number of elements per factor.
  int64_t block() const { return !is_blocks() ? length : mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ? 32 : 128; }
  // As in the chapters on scaling factors layouts of the library's documentation.
  float value(int64_t column, int64_t row) const {
    if (address == nullptr) return 1.0f;
    const auto* const numbers = static_cast<const float*>(address);
    const int64_t inner = row / block();
    switch (mode) {
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
        return numbers[inner * outer + column];
      case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: {
        const int64_t blocks = (length + 127) / 128, stride = (blocks + 3) / 4 * 4;
        return numbers[column / 128 * stride + inner];
      }
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
        const int64_t stride = (length + 127) / 128 * 4;
        const int64_t tile = (inner / 4 * 4 + column / 128 * stride) * 128;
        const int64_t within = column % 128;
        const auto code = static_cast<const uint8_t*>(address)[tile + within % 32 * 16 + within / 32 * 4 + inner % 4];
        return code == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
      }
      default:
        return numbers[0];
    }
  }
};

}  // namespace mantissa::cuda::fake_cublaslt
