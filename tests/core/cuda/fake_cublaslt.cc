#include "tests/core/cuda/fake_cublaslt.h"

#include <algorithm>
#include <mutex>

#include "core/cuda/emulation/stream_queue.h"
#include "tests/core/cuda/fake_cublaslt_operands.h"
#include "tests/reference/gelu.h"

namespace mantissa::cuda::fake_cublaslt {
namespace {

constexpr uint64_t kMark = 0x616c676f;  // marks algorithms of this library

std::mutex mutex;

// The end of a product, with its operands.
struct Epilogue {
  cublasLtEpilogue_t kind;
  bool is_gelu = false, is_gradient = false;
  Aux aux{};
  const std::byte* bias = nullptr;

  Epilogue(cublasLtMatmulDesc_t operation, const Matrix& d)
      : kind(static_cast<cublasLtEpilogue_t>(get<uint32_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE))),
        is_gelu(kind == CUBLASLT_EPILOGUE_GELU_AUX || kind == CUBLASLT_EPILOGUE_GELU_AUX_BIAS),
        is_gradient(kind == CUBLASLT_EPILOGUE_DGELU) {
    const bool adds_bias = kind == CUBLASLT_EPILOGUE_BIAS || kind == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    expect(kind == CUBLASLT_EPILOGUE_DEFAULT || adds_bias || is_gelu || is_gradient, "epilogue");
    if (is_gelu || is_gradient) {
      aux = {static_cast<std::byte*>(get<void*>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)),
             get<int64_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)};
      expect(aux.data != nullptr && reinterpret_cast<uintptr_t>(aux.data) % 16 == 0, "aux address");
      expect(aux.stride >= d.rows && aux.stride % 8 == 0, "aux stride");
    }
    if (!adds_bias) return;
    bias = static_cast<const std::byte*>(get<const void*>(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
    expect(bias != nullptr, "bias address");
    expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) == d.type, "bias of D's type");
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

struct Product {
  Matrix a, b, d;
  bool trans_a, trans_b;
  Factors a_factors, b_factors;
  Epilogue epilogue;
  Scalar scale, keep;

  // The sum is divided into blocks, each with its factors.
  float sum(const float* a_row, const float* b_column, int64_t k, int64_t i, int64_t j) const {
    const int64_t block = is_code(a.type) ? a_factors.block() : k;
    float sum = 0;
    for (int64_t begin = 0; begin < k; begin += block) {
      float part = 0;
      for (int64_t l = begin; l < std::min(k, begin + block); ++l) part += a_row[l] * b_column[l];
      part *= a_factors.value(i, begin);
      sum += part * b_factors.value(j, begin);
    }
    return sum;
  }

  float finished(float sum, int64_t i, int64_t j) const {
    sum *= scale.value();
    if (keep.value() != 0) sum += keep.value() * load(d.at(i, j), d.type);
    if (epilogue.bias != nullptr) sum += load(epilogue.bias + static_cast<size_t>(i) * size_of(d.type), d.type);
    if (epilogue.is_gelu) {
      store(epilogue.aux.at(i, j, d.type), d.type, sum);
      return static_cast<float>(reference::gelu<double>(sum, GeluForm::kTanh));
    }
    if (!epilogue.is_gradient) return sum;
    const double x = load(epilogue.aux.at(i, j, d.type), d.type);
    return sum * static_cast<float>(reference::gelu_derivative<double>(x, GeluForm::kTanh));
  }

  void run() const {
    const std::vector<float> a_rows = lines(a, trans_a), b_columns = lines(b, !trans_b);
    const int64_t k = trans_a ? a.rows : a.columns;
    for (int64_t j = 0; j < d.columns; ++j) {
      for (int64_t i = 0; i < d.rows; ++i) {
        const float made = sum(a_rows.data() + i * k, b_columns.data() + j * k, k, i, j);
        store(d.at(i, j), d.type, finished(made, i, j));
      }
    }
  }
};

// The documented requirements for products of 8-bit operands before compute capability 10.
void expect_takes_codes(cublasLtMatmulDesc_t operation, const Product& product) {
  const Matrix &a = product.a, &b = product.b, &d = product.d;
  expect(is_code(a.type) && is_code(b.type), "codes on both sides");
  expect(a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3, "not e5m2 on both sides");
  expect(product.trans_a && !product.trans_b, "TN");
  expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) == CUBLAS_COMPUTE_32F, "compute type");
  for (const Matrix& matrix : {a, b, d}) {
    expect(matrix.rows % 16 == 0 && matrix.columns % 16 == 0, "sizes of codes");
    expect(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.stride_bytes() % 16 == 0, "rows of codes");
  }
  const cublasLtEpilogue_t kind = product.epilogue.kind;
  expect(kind == CUBLASLT_EPILOGUE_DEFAULT || (kind == CUBLASLT_EPILOGUE_BIAS && d.type != CUDA_R_32F),
         "epilogue of codes");
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
  const std::pair<cublasLtMatrixLayout_t, cublasLtMatmulPreferenceAttributes_t> operands[] = {
      {a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES},
      {b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES},
      {d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES},
      {d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}};
  now.alignments.clear();
  for (const auto& [layout, attribute] : operands) now.alignments.push_back(get<uint32_t>(preference, attribute));
  for (const auto& [layout, attribute] : operands) {
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

// Expects a product that the library takes, and notes it for the tests.
void examine(const Product& product, cublasLtMatmulDesc_t operation, State& now) {
  const auto& [a, b, d, trans_a, trans_b, a_factors, b_factors, epilogue, scale, keep] = product;
  expect(get<int32_t>(operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE) == CUDA_R_32F, "scale type");
  expect_takes_modes(a_factors.mode, b_factors.mode);
  if (is_code(a.type) || is_code(b.type)) {
    expect_takes_codes(operation, product);
    now.fast_accumulation = get<int8_t>(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0;
    now.code_types.push_back({a.type, b.type});
    now.scale_modes.push_back({a_factors.mode, b_factors.mode});
  } else {
    expect(a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F), "types");
    expect(a_factors.address == nullptr && b_factors.address == nullptr, "factors of codes only");
  }
  for (const Matrix& matrix : {a, b, d}) {
    const size_t alignment = now.required_alignment;
    expect(reinterpret_cast<uintptr_t>(matrix.data) % alignment == 0, "aligned as required");
    expect(matrix.stride_bytes() % alignment == 0, "columns aligned as required");
  }
  expect((trans_a ? a.rows : a.columns) == (trans_b ? b.columns : b.rows), "extents");
  expect(d.rows == (trans_a ? a.columns : a.rows) && d.columns == (trans_b ? b.rows : b.columns), "extents of D");
  now.epilogues.push_back(epilogue.kind);
  if (reinterpret_cast<uintptr_t>(epilogue.bias) % 16 != 0) now.aligned_bias = false;
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
  const Matrix a(a_data, a_layout), b(b_data, b_layout), d(d_data, d_layout);
  const Product product{
      .a = a,
      .b = b,
      .d = d,
      .trans_a = get<int32_t>(operation, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T,
      .trans_b = get<int32_t>(operation, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T,
      .a_factors = {operation, a, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_MODE},
      .b_factors = {operation, b, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_MODE},
      .epilogue = {operation, d},
      .scale = {alpha, operation},
      .keep = {beta, operation}};
  examine(product, operation, now);
  const double duration_ms = now.duration_ms.at(algorithm->data[0]) * (now.products % 2 == 0 ? 1.0 + now.scatter : 1.0);
  ++now.products;
  now.ran.push_back(static_cast<int>(algorithm->data[0]));
  emulation::enqueue(stream, [=] {
    emulation::take_time(duration_ms);
    product.run();
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
