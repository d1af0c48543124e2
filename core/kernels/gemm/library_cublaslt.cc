#include "core/kernels/gemm/library_cublaslt.h"

#include <fmt/core.h>

#include "core/base/check.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

CublasLt load() {
  const SharedLibrary library(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), {"CUDA_HOME", "CUDA_PATH"},
                              fmt::format("install the CUDA {} libraries or put them on LD_LIBRARY_PATH (tools/bundle "
                                          "--with-cuda)",
                                          CUBLAS_VER_MAJOR));
  CublasLt table;
  MANTISSA_CUBLASLT_FUNCTIONS(MANTISSA_FIND_FUNCTION)
  if (const size_t version = table.version(); version / 10000 != CUBLAS_VER_MAJOR) {
    throw ConfigError(fmt::format("{} has version {}, expected the major version {} that this program was built for",
                                  library.name(), version, CUBLAS_VER_MAJOR));
  }
  return table;
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      throw ContractError(fmt::format("[gemm] expected a floating dtype, got {}", dtype));
  }
}

cudaDataType_t operand_type(const GemmKey& key, Format format) {
  if (!is_of_codes(key)) return data_type(key.dtype);
  return format == Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

// Always sums in fp32. FAST_TF32 only on request: by default the library does not round fp32 operands.
cublasComputeType_t compute_type(const GemmKey& key) {
  return key.fp32_math == Fp32Math::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cublasLtEpilogue_t epilogue(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kGeluAux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  throw ContractError(fmt::format("[gemm] unknown epilogue {}", static_cast<int>(epilogue)));
}

// The layouts of block scales (cublasLtMatmulMatrixScale_t) and their attributes, as numbers: headers before CUDA 12.8
// and 12.9 lack the names. Libraries without these modes are never asked for them (fp8_gemm_support.h).
const auto kScaleModeOfA = static_cast<cublasLtMatmulDescAttributes_t>(31),
           kScaleModeOfB = static_cast<cublasLtMatmulDescAttributes_t>(32);

int32_t scale_mode(BlockScaleLayout layout) {
  switch (layout) {
    case BlockScaleLayout::kRowBlocks128:
      return 4;  // VEC128_32F
    case BlockScaleLayout::kSquareBlocks128:
      return 5;  // BLK128x128_32F
    case BlockScaleLayout::kMicroTiles:
      return 2;  // VEC32_UE8M0
  }
  throw ContractError(fmt::format("[gemm] unknown layout {} of block scales", static_cast<int>(layout)));
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt kTable = load();
  return kTable;
}

std::string cublaslt_unusable_reason() {
  try {
    cublaslt();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void check_cublaslt(const CublasLt& library, cublasStatus_t status, const char* call, const GemmKey& key) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("[gemm] {} failed with {} for {}", call, library.status_name(status), describe(key)));
}

template <typename Value>
void GemmDescriptors::set(cublasLtMatmulDescAttributes_t attribute, const Value& value, const char* what) {
  check_cublaslt(library_, library_.set_operation(operation_.get(), attribute, &value, sizeof(value)), what, key_);
}

GemmDescriptors::Owned<cublasLtMatrixLayoutOpaque_t> GemmDescriptors::layout(cudaDataType_t type, int64_t rows,
                                                                             int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_cublaslt(
      library_,
      library_.create_layout(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
      "cublasLtMatrixLayoutCreate", key_);
  return {made, library_.destroy_layout};
}

GemmDescriptors::GemmDescriptors(const CublasLt& library, const GemmKey& key)
    : library_(library),
      key_(key),
      operation_(nullptr, library.destroy_operation),
      a_(nullptr, library.destroy_layout),
      b_(nullptr, library.destroy_layout),
      d_(nullptr, library.destroy_layout) {
  const bool trans_a = key.trans_a == Transpose::kYes, trans_b = key.trans_b == Transpose::kYes;
  // Column-major rows and columns as stored: our row length first.
  a_ = layout(operand_type(key, key.b_format), trans_b ? key.k : key.n, trans_b ? key.n : key.k, key.b_stride);
  b_ = layout(operand_type(key, key.a_format), trans_a ? key.m : key.k, trans_a ? key.k : key.m, key.a_stride);
  d_ = layout(data_type(key.c_dtype), key.n, key.m, key.c_stride);

  cublasLtMatmulDesc_t made = nullptr;
  check_cublaslt(library_, library_.create_operation(&made, compute_type(key), CUDA_R_32F), "cublasLtMatmulDescCreate",
                 key_);
  operation_.reset(made);
  const int32_t transform_a = trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, transform_b = trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, transform_a, "cublasLtMatmulDescSetAttribute(TRANSA)");
  set(CUBLASLT_MATMUL_DESC_TRANSB, transform_b, "cublasLtMatmulDescSetAttribute(TRANSB)");
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue(key.epilogue)),
      "cublasLtMatmulDescSetAttribute(EPILOGUE)");
  if (is_of_codes(key)) {
    // Adds the units' short sums to fp32 registers at intervals.
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0}, "cublasLtMatmulDescSetAttribute(FAST_ACCUM)");
  } else if (key.scaled) {
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE),
        "cublasLtMatmulDescSetAttribute(POINTER_MODE)");
  }
  if (key.a_blocks && key.b_blocks) {
    set(kScaleModeOfA, scale_mode(*key.b_blocks), "cublasLtMatmulDescSetAttribute(A_SCALE_MODE)");
    set(kScaleModeOfB, scale_mode(*key.a_blocks), "cublasLtMatmulDescSetAttribute(B_SCALE_MODE)");
  }
  if (uses_bias(key.epilogue)) {
    // 16-bit and fp32 products accept only D's type, and so do those of codes with a 16-bit D (cublasLt.h,
    // CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE).
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(data_type(key.c_dtype)),
        "cublasLtMatmulDescSetAttribute(BIAS_DATA_TYPE)");
  }
  if (uses_aux(key.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{key.n}, "cublasLtMatmulDescSetAttribute(EPILOGUE_AUX_LD)");
  }
}

void GemmDescriptors::set_factors(const void* of_a, const void* of_b) {
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b, "cublasLtMatmulDescSetAttribute(A_SCALE_POINTER)");
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a, "cublasLtMatmulDescSetAttribute(B_SCALE_POINTER)");
}

void GemmDescriptors::set_addresses(const GemmOperands& operands) {
  if (uses_bias(key_.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias, "cublasLtMatmulDescSetAttribute(BIAS_POINTER)");
  }
  if (uses_aux(key_.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux,
        "cublasLtMatmulDescSetAttribute(EPILOGUE_AUX_POINTER)");
  }
  if (!is_of_codes(key_)) return;
  if (key_.a_blocks && key_.b_blocks) {
    set_factors(operands.a_block_scales, operands.b_block_scales);
  } else if (key_.scaled) {
    set_factors(operands.scalars, operands.scalars + kInverseScaleStride);
  }
}

}  // namespace mantissa::cuda
