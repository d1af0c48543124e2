// A product as the GEMM library is asked for it: what decides which of its kernels can run and is fastest (GemmKey),
// and the addresses. Row-major, as in GemmArgs; the library's column-major view of it is made in gemm_descriptor.cc.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "core/kernels/gemm/args.h"
#include "core/kernels/kernel_args.h"
#include "core/tensor/format.h"

namespace mantissa::cuda {

// What is done with the fp32 sums before they are rounded and stored. gelu is its tanh form.
//
// Not used: the epilogues that add up a bias gradient. Beside a 16-bit gradient of gelu's input (DGELU_BGRAD) it would
// be rounded to 16 bits, and beside a weight's gradient (BGRADA, BGRADB) it would be fp32 but could not be added to
// that of an earlier micro-batch.
enum class GemmEpilogue : uint8_t {
  kNone,
  kBias,          // c = sum + bias (N)
  kGeluAux,       // aux (M, N) = sum; c = gelu(sum)
  kGeluAuxBias,   // aux (M, N) = sum + bias (N); c = gelu(sum + bias)
  kGeluGradient,  // c = sum * gelu'(aux (M, N))
};

// Whether a vector called bias belongs to it, and whether a matrix aux (M, N) does. Both are of c's dtype.
bool uses_bias(GemmEpilogue epilogue);
bool uses_aux(GemmEpilogue epilogue);

// Whether the library may have an epilogue for the arguments' activation: the tanh form, whose aux has rows of a
// multiple of 8 elements and an aligned address. Only for 16-bit dtypes, next to whose rounding the library's
// approximation of tanh, which nothing documents, does not show; fp32 keeps the accuracy of our own kernels.
bool has_epilogue(const GemmArgs& args);

// Addresses are told apart up to 16 bytes: what the widest accesses of kernels need. Finer classes would make several
// problems out of one, each with a choice of its own.
constexpr uint32_t kGemmAlignmentBytes = 16;
// The largest power of two, up to kGemmAlignmentBytes, that divides it; 0 for no address.
uint32_t gemm_alignment(const void* address);

struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  // From one row to the next as stored, in elements.
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  DType dtype = DType::kF32, c_dtype = DType::kF32;
  Format a_format = Format::kE4M3, b_format = Format::kE4M3;  // of codes (dtype u8); else always these
  std::optional<BlockScaleLayout> a_blocks{}, b_blocks{};     // of codes: how scales of their blocks lie; else nothing
  Transpose trans_a = Transpose::kNo, trans_b = Transpose::kNo;
  Fp32Math fp32_math = Fp32Math::kFull;  // kFull unless dtype is fp32
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  GradientMode mode = GradientMode::kWrite;
  // Codes: their inverse scales are read from device memory. Other operands: alpha and beta are; else alpha is 1, beta
  // 0 or 1.
  bool scaled = false;
  uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0, bias_alignment = 0, aux_alignment = 0;

  auto operator<=>(const GemmKey&) const = default;
};

inline bool is_of_codes(const GemmKey& key) { return key.dtype == DType::kU8; }

// The key on one line, different for different keys.
std::string to_text(const GemmKey& key);
// For messages: "1024 x 3072 x 768 (M x N x K), bf16 -> fp32, ...".
std::string describe(const GemmKey& key);

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  void* bias = nullptr;
  void* aux = nullptr;
  const float* scalars = nullptr;  // on the device, where the product is scaled: see core/cuda/gemm_scalars.h
  const void* a_block_scales = nullptr;
  const void* b_block_scales = nullptr;
};

struct GemmProblem {
  GemmKey key;
  GemmOperands operands;
};

// What the library reads beside matrices, wherever it lies; null for what there is none of.
struct GemmVectors {
  void* bias = nullptr;            // args.bias as c's dtype
  const float* scalars = nullptr;  // as in GemmOperands
};

GemmProblem gemm_problem(const GemmArgs& args, const GemmExtents& extents, const GemmVectors& vectors);

// Sets the alignments from the addresses.
void classify_addresses(GemmProblem& problem);

}  // namespace mantissa::cuda
