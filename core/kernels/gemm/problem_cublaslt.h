// A product as it is passed to the GEMM library: its addresses, and GemmKey, which determines the possible kernels and
// the fastest of them. Row-major, as in GemmArgs. GemmDescriptors are the library's column-major view.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "core/kernels/gemm/args.h"
#include "core/kernels/kernel_args.h"
#include "core/tensor/format.h"

namespace mantissa::cuda {

// The operation on the fp32 sums before they are rounded and stored. gelu is its tanh form.
//
// The epilogues that sum a bias gradient are not used. Beside a 16-bit gradient of gelu's input (DGELU_BGRAD) it would
// be rounded to 16 bits. Beside a weight's gradient (BGRADA, BGRADB) it would be fp32, but could not be added to that
// of an earlier micro-batch.
enum class GemmEpilogue : uint8_t {
  kNone,
  kBias,          // c = sum + bias (N)
  kGeluAux,       // aux (M, N) = sum; c = gelu(sum)
  kGeluAuxBias,   // aux (M, N) = sum + bias (N); c = gelu(sum + bias)
  kGeluGradient,  // c = sum * gelu'(aux (M, N))
};

// Whether the epilogue needs a bias (N), or a matrix aux (M, N). Both have c's dtype.
bool uses_bias(GemmEpilogue epilogue);
bool uses_aux(GemmEpilogue epilogue);

// Whether the library may have an epilogue for the arguments' activation: the tanh form, with rows of aux that are a
// multiple of 8 elements, and an aligned address. For 16-bit dtypes only: the library's undocumented approximation of
// tanh is smaller than their rounding. fp32 keeps the accuracy of our own kernels.
bool has_epilogue(const GemmArgs& args);

// Addresses are classified by alignment up to 16 bytes, which the widest accesses of kernels need. Finer classes would
// split one problem into several, each with a choice of its own.
constexpr uint32_t kGemmAlignmentBytes = 16;
// The largest power of two, up to kGemmAlignmentBytes, that divides the address; 0 for null.
uint32_t gemm_alignment(const void* address);

struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  // From one row to the next as stored, in elements.
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  DType dtype = DType::kF32, c_dtype = DType::kF32;
  Format a_format = Format::kE4M3, b_format = Format::kE4M3;  // of codes (dtype u8); else always these
  std::optional<BlockScaleLayout> a_blocks{}, b_blocks{};     // of codes with block scales: their layout
  Transpose trans_a = Transpose::kNo, trans_b = Transpose::kNo;
  Fp32Math fp32_math = Fp32Math::kFull;  // kFull unless dtype is fp32
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  GradientMode mode = GradientMode::kWrite;
  // Whether scalars are read from device memory: the inverse scales of codes, or alpha and beta of other operands.
  // Otherwise alpha is 1, and beta 0 or 1.
  bool scaled = false;
  uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0, bias_alignment = 0, aux_alignment = 0;

  auto operator<=>(const GemmKey&) const = default;
};

inline bool is_of_codes(const GemmKey& key) { return key.dtype == DType::kU8; }

// The key on one line, different for different keys.
std::string to_text(const GemmKey& key);
// For messages: "1024 x 3072 x 768 (M x N x K), bf16 -> fp32, ...".
std::string describe(const GemmKey& key);

// The distance of the inverse scales of a and b in GemmOperands::scalars, for codes: 16 bytes.
constexpr int kInverseScaleStride = 4;

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  void* bias = nullptr;
  void* aux = nullptr;
  const float* scalars = nullptr;  // on the device, for a scaled product: see write_scalars()
  const void* a_block_scales = nullptr;
  const void* b_block_scales = nullptr;
};

struct GemmProblem {
  GemmKey key;
  GemmOperands operands;
};

// The library's operands other than matrices; null for none.
struct GemmVectors {
  void* bias = nullptr;            // args.bias as c's dtype
  const float* scalars = nullptr;  // as in GemmOperands
};

GemmProblem gemm_problem(const GemmArgs& args, const GemmExtents& extents, const GemmVectors& vectors);

// Sets the alignments in the key from the addresses.
void classify_addresses(GemmProblem& problem);

// Queue a kernel that writes the scalars of a product whose scales only the device knows.
//
// scalars[0] = alpha = 1 / a_scale * 1 / b_scale, scalars[1] = beta = 1 with kAccumulate, else 0.
void write_scalars(const GemmArgs& args, float* scalars, CudaStream& stream);

// scalars[0] = 1 / a_scale, scalars[kInverseScaleStride] = 1 / b_scale.
void write_inverse_scales(const GemmArgs& args, float* scalars, CudaStream& stream);

}  // namespace mantissa::cuda
