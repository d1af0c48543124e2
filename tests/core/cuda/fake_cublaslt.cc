#include "tests/core/cuda/fake_cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>

#include "core/cuda/emulation/stream_queue.h"
#include "core/tensor/format.h"
#include "core/tensor/half.h"
#include "tests/reference/gelu.h"

namespace mantissa::cuda::fake_cublaslt {
namespace {

// ---- Attributes of the real library's descriptors.

template <typename Function>
Function real(const char* name) {
  static void* const library = dlopen(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR).c_str(), RTLD_NOW);
  if (library == nullptr || dlsym(library, name) == nullptr) throw std::runtime_error(name);
  return reinterpret_cast<Function>(dlsym(library, name));
}

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

template <typename Value>
Value get(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute) {
  static const auto function = real<decltype(&cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
  Value value{};
  size_t written = 0;
  expect(function(layout, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS, "layout attribute");
  return value;
}

template <typename Value>
Value get(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute) {
  static const auto function = real<decltype(&cublasLtMatmulDescGetAttribute)>("cublasLtMatmulDescGetAttribute");
  Value value{};
  size_t written = 0;
  expect(function(operation, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS,
         "operation attribute");
  return value;
}

template <typename Value>
Value get(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute) {
  static const auto function =
      real<decltype(&cublasLtMatmulPreferenceGetAttribute)>("cublasLtMatmulPreferenceGetAttribute");
  Value value{};
  size_t written = 0;
  expect(function(preference, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS, "preference");
  return value;
}

// ---- The stand-in

constexpr uint64_t kMark = 0x616c676f;  // marks algorithms of this library

std::mutex mutex;

bool is_code(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : is_code(type) ? 1 : 2; }

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
const std::array<float, 256>& values_of(cudaDataType type) {
  const auto list = [](Format format) {
    std::array<float, 256> values{};
    for (uint32_t code = 0; code < 256; ++code) values[code] = decode(format, code);
    return values;
  };
  static const std::array<float, 256> e4m3 = list(Format::kE4M3), e5m2 = list(Format::kE5M2);
  return type == CUDA_R_8F_E4M3 ? e4m3 : e5m2;
}

float load(const std::byte* from, cudaDataType type) {
  if (is_code(type)) return values_of(type)[static_cast<size_t>(*from)];
  if (type == CUDA_R_32F) return *reinterpret_cast<const float*>(from);
  if (type == CUDA_R_16BF) return to_float(*reinterpret_cast<const BFloat16*>(from));
  return to_float(*reinterpret_cast<const Float16*>(from));
}

// The numbers at(line, 0), at(line, 1) ... of each line in sequence.
template <typename At>
std::vector<float> lines(const Matrix& matrix, int64_t count, int64_t length, const At& at) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count * length));
  for (int64_t line = 0; line < count; ++line) {
    for (int64_t l = 0; l < length; ++l) values.push_back(load(at(line, l), matrix.type));
  }
  return values;
}

void store(std::byte* to, cudaDataType type, float value) {
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

Aux aux_of(cublasLtMatmulDesc_t operation, const Matrix& d) {
  const Aux aux{static_cast<std::byte*>(get<void*>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)),
                get<int64_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)};
  expect(aux.data != nullptr && reinterpret_cast<uintptr_t>(aux.data) % 16 == 0, "aux address");
  expect(aux.stride >= d.rows && aux.stride % 8 == 0, "aux stride");
  return aux;
}

// alpha or beta. A value on the host is read when the product is queued, one on the device when it runs.
struct Scalar {
  const float* on_device = nullptr;
  float on_host = 0;

  Scalar(const void* address, cublasLtMatmulDesc_t operation) {
    const auto mode = get<int32_t>(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE);
    expect(mode == CUBLASLT_POINTER_MODE_HOST || mode == CUBLASLT_POINTER_MODE_DEVICE, "pointer mode");
    if (mode == CUBLASLT_POINTER_MODE_DEVICE) {
      on_device = static_cast<const float*>(address);
    } else {
      on_host = *static_cast<const float*>(address);
    }
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

bool is_of_128(cublasLtMatmulMatrixScale_t mode) {
  return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

// The library's table of supported combinations.
void expect_takes_modes(cublasLtMatmulMatrixScale_t a, cublasLtMatmulMatrixScale_t b) {
  if (is_of_128(a) || is_of_128(b)) {
    expect(is_of_128(a) && is_of_128(b), "blocks of 128 on both sides");
    expect(a != CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F || a != b, "not square blocks on both sides");
  } else {
    expect(a == b, "one scale mode");
    expect(a == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F || a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, "scale mode");
  }
}

// The documented requirements for products of 8-bit operands before compute capability 10.
void expect_takes_codes(cublasLtMatmulDesc_t operation, const Matrix& a, const Matrix& b, const Matrix& d) {
  expect(is_code(a.type) && is_code(b.type), "codes on both sides");
  expect(a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3, "not e5m2 on both sides");
  expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T &&
             get<int32_t>(operation, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_N,
         "TN");
  expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) == CUBLAS_COMPUTE_32F, "compute type");
  for (const Matrix& matrix : {a, b, d}) {
    expect(matrix.rows % 16 == 0 && matrix.columns % 16 == 0, "sizes of codes");
    expect(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.stride_bytes() % 16 == 0, "rows of codes");
  }
  const auto epilogue = get<uint32_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE);
  expect(epilogue == CUBLASLT_EPILOGUE_DEFAULT || (epilogue == CUBLASLT_EPILOGUE_BIAS && d.type != CUDA_R_32F),
         "epilogue of codes");
}

bool divides(size_t alignment, const void* address, const Matrix& matrix) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0 && matrix.stride_bytes() % alignment == 0;
}

cublasStatus_t create(cublasLtHandle_t* handle) {
  static int context;
  *handle = reinterpret_cast<cublasLtHandle_t>(&context);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t destroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t algorithms(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                          cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
                          int* found) {
  const std::lock_guard lock(mutex);
  State& now = state();
  ++now.heuristic_calls;
  if (now.heuristic_status != CUBLAS_STATUS_SUCCESS) return now.heuristic_status;
  if (now.refuses_gelu && get<uint32_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE) > CUBLASLT_EPILOGUE_BIAS) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  now.reduction_schemes = get<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  now.workspace_bytes = get<uint64_t>(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  now.compute_type = static_cast<cublasComputeType_t>(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE));
  const std::pair<cublasLtMatrixLayout_t, cublasLtMatmulPreferenceAttributes_t> kOperands[] = {
      {a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES},
      {b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES},
      {d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES},
      {d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}};
  now.alignments.clear();
  for (const auto& [layout, attribute] : kOperands) now.alignments.push_back(get<uint32_t>(preference, attribute));
  for (const auto& [layout, attribute] : kOperands) {
    if (get<uint32_t>(preference, attribute) < now.required_alignment ||
        Matrix(nullptr, layout).stride_bytes() % now.required_alignment != 0) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  }
  *found = std::min(wanted, static_cast<int>(now.duration_ms.size()));
  for (int i = 0; i < *found; ++i) {
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].algo.data[0] = static_cast<uint64_t>(i);
    results[i].algo.data[1] = kMark;
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool is_refused(const cublasLtMatmulAlgo_t& algorithm) {
  const std::vector<int>& refused = state().refused;
  return algorithm.data[1] != kMark ||
         std::find(refused.begin(), refused.end(), static_cast<int>(algorithm.data[0])) != refused.end();
}

cublasStatus_t check_algorithm(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm,
                               cublasLtMatmulHeuristicResult_t* result) {
  const std::lock_guard lock(mutex);
  result->workspaceSize = 0;
  return is_refused(*algorithm) ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a_data,
                      cublasLtMatrixLayout_t a_layout, const void* b_data, cublasLtMatrixLayout_t b_layout,
                      const void* beta, const void* c_data, cublasLtMatrixLayout_t c_layout, void* d_data,
                      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                      size_t workspace_bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  State& now = state();
  if (is_refused(*algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (now.before_product) now.before_product();
  expect(c_data == d_data && c_layout == d_layout, "in place");
  expect(reinterpret_cast<uintptr_t>(workspace) % 256 == 0 && workspace_bytes >= now.workspace_bytes, "workspace");
  expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE) == CUDA_R_32F, "scale type");
  const Matrix a(a_data, a_layout), b(b_data, b_layout), d(d_data, d_layout);
  const bool of_codes = is_code(a.type) || is_code(b.type);
  if (of_codes) {
    expect_takes_codes(operation, a, b, d);
    now.fast_accumulation = get<int8_t>(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0;
    now.code_types.push_back({a.type, b.type});
  } else {
    expect(a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F), "types");
  }
  const Factors a_factors(operation, a, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_MODE),
      b_factors(operation, b, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
  expect(of_codes || (a_factors.address == nullptr && b_factors.address == nullptr), "factors of codes only");
  expect_takes_modes(a_factors.mode, b_factors.mode);
  if (of_codes) now.scale_modes.push_back({a_factors.mode, b_factors.mode});
  for (const auto& [address, matrix] : {std::pair{a_data, a}, std::pair{b_data, b}, std::pair{c_data, d}}) {
    expect(divides(now.required_alignment, address, matrix), "aligned as required");
  }
  const bool trans_a = get<int32_t>(operation, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T;
  const bool trans_b = get<int32_t>(operation, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
  const int64_t m = trans_a ? a.columns : a.rows, k = trans_a ? a.rows : a.columns;
  const int64_t n = trans_b ? b.rows : b.columns;
  expect((trans_b ? b.columns : b.rows) == k && d.rows == m && d.columns == n, "extents");

  const auto epilogue = static_cast<cublasLtEpilogue_t>(get<uint32_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE));
  const bool adds_bias = epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool is_gelu = epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool is_gradient = epilogue == CUBLASLT_EPILOGUE_DGELU;
  expect(epilogue == CUBLASLT_EPILOGUE_DEFAULT || adds_bias || is_gelu || is_gradient, "epilogue");
  now.epilogues.push_back(epilogue);
  const Aux aux = is_gelu || is_gradient ? aux_of(operation, d) : Aux{};
  const std::byte* bias = nullptr;
  if (adds_bias) {
    bias = static_cast<const std::byte*>(get<const void*>(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
    expect(bias != nullptr, "bias address");
    expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) == d.type, "bias of D's type");
    if (reinterpret_cast<uintptr_t>(bias) % 16 != 0) now.aligned_bias = false;
  }
  const int64_t block = of_codes ? a_factors.block() : k;
  const Scalar scale(alpha, operation), keep(beta, operation);
  const int number = static_cast<int>(algorithm->data[0]);
  const double duration_ms = now.duration_ms.at(algorithm->data[0]) * (now.products % 2 == 0 ? 1.0 + now.scatter : 1.0);
  ++now.products;
  now.ran.push_back(number);
  emulation::enqueue(stream, [=] {
    emulation::take_time(duration_ms);
    const std::vector<float> a_rows = lines(a, m, k,
                                            [&](int64_t i, int64_t l) { return trans_a ? a.at(l, i) : a.at(i, l); }),
                             b_columns = lines(b, n, k,
                                               [&](int64_t j, int64_t l) { return trans_b ? b.at(j, l) : b.at(l, j); });
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t begin = 0; begin < k; begin += block) {
          float part = 0;
          for (int64_t l = begin; l < std::min(k, begin + block); ++l) {
            part += a_rows[static_cast<size_t>(i * k + l)] * b_columns[static_cast<size_t>(j * k + l)];
          }
          part *= a_factors.value(i, begin);
          sum += part * b_factors.value(j, begin);
        }
        sum *= scale.value();
        if (keep.value() != 0) sum += keep.value() * load(d.at(i, j), d.type);
        if (bias != nullptr) sum += load(bias + static_cast<size_t>(i) * size_of(d.type), d.type);
        if (is_gelu) {
          store(aux.at(i, j, d.type), d.type, sum);
          sum = static_cast<float>(reference::gelu<double>(sum, GeluForm::kTanh));
        } else if (is_gradient) {
          sum *= static_cast<float>(
              reference::gelu_derivative<double>(load(aux.at(i, j, d.type), d.type), GeluForm::kTanh));
        }
        store(d.at(i, j), d.type, sum);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

State& state() {
  static State state;
  return state;
}

CublasLt library() {
  state() = State{};
  CublasLt table = cublaslt();
  table.create = create;
  table.destroy = destroy;
  table.algorithms = algorithms;
  table.check_algorithm = check_algorithm;
  table.matmul = matmul;
  return table;
}

}  // namespace mantissa::cuda::fake_cublaslt
