#include "core/kernels/gemm/problem_cublaslt.h"

#include <algorithm>

namespace mantissa::cuda {
namespace {

constexpr const char* kEpilogueNames[] = {"none", "bias", "gelu_aux", "gelu_aux_bias", "gelu_gradient"};

const char* name_of(GemmEpilogue epilogue) { return kEpilogueNames[static_cast<int>(epilogue)]; }
const char* letter_of(Transpose transpose) { return transpose == Transpose::kYes ? "t" : "n"; }
const char* name_of(Fp32Math math) { return math == Fp32Math::kTf32 ? "tf32" : "full"; }
const char* name_of(GradientMode mode) { return mode == GradientMode::kAccumulate ? "accumulate" : "write"; }

GemmEpilogue epilogue_of(GemmActivation activation, bool has_bias) {
  if (activation == GemmActivation::kGeluGradient) return GemmEpilogue::kGeluGradient;
  if (activation == GemmActivation::kGelu) return has_bias ? GemmEpilogue::kGeluAuxBias : GemmEpilogue::kGeluAux;
  return has_bias ? GemmEpilogue::kBias : GemmEpilogue::kNone;
}

const char* name_of(std::optional<BlockScaleLayout> blocks) {
  if (!blocks) return "";
  if (*blocks == BlockScaleLayout::kMicroTiles) return "/1x32";
  return *blocks == BlockScaleLayout::kSquareBlocks128 ? "/128x128" : "/1x128";
}

// The formats of the operands: "bf16", "e4m3*e5m2", "e4m3/1x128*e4m3/128x128".
std::string name_of_operands(const GemmKey& key, std::string_view between) {
  if (!is_of_codes(key)) return std::string(name(key.dtype));
  return fmt::format("{}{}{}{}{}", info(key.a_format).name, name_of(key.a_blocks), between, info(key.b_format).name,
                     name_of(key.b_blocks));
}

std::optional<BlockScaleLayout> layout_of(const Tensor& block_scales, BlockScaleLayout layout) {
  return block_scales.defined() ? std::optional(layout) : std::nullopt;
}

const void* address_of(const Tensor& block_scales) { return block_scales.defined() ? block_scales.raw() : nullptr; }

}  // namespace

bool uses_bias(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kBias || epilogue == GemmEpilogue::kGeluAuxBias;
}

bool uses_aux(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kGeluAux || epilogue == GemmEpilogue::kGeluAuxBias ||
         epilogue == GemmEpilogue::kGeluGradient;
}

bool has_epilogue(const GemmArgs& args) {
  constexpr int64_t kAuxRowMultiple = 8;
  return args.form == GeluForm::kTanh && args.c.dtype() != DType::kF32 && args.c.dim(1) % kAuxRowMultiple == 0 &&
         gemm_alignment(args.aux.raw()) == kGemmAlignmentBytes;
}

uint32_t gemm_alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  if (bits == 0) return 0;
  return static_cast<uint32_t>(std::min<uintptr_t>(bits & (~bits + 1), kGemmAlignmentBytes));
}

std::string to_text(const GemmKey& key) {
  return fmt::format("{} {} {} {} {} {} {} {} {}{} {} {} {}{} {} {} {} {} {}", key.m, key.n, key.k, key.a_stride,
                     key.b_stride, key.c_stride, name_of_operands(key, "*"), name(key.c_dtype), letter_of(key.trans_a),
                     letter_of(key.trans_b), name_of(key.fp32_math), name_of(key.epilogue), name_of(key.mode),
                     key.scaled ? " scaled" : "", key.a_alignment, key.b_alignment, key.c_alignment, key.bias_alignment,
                     key.aux_alignment);
}

std::string describe(const GemmKey& key) {
  return fmt::format(
      "{} x {} x {} (M x N x K), {} -> {}{}{}{}{}{}, epilogue {}, rows of a, b and c {}, {} and {} elements apart, "
      "addresses multiples of {}, {} and {} bytes",
      key.m, key.n, key.k, name_of_operands(key, " x "), key.c_dtype,
      key.fp32_math == Fp32Math::kTf32 ? " by TF32" : "", key.trans_a == Transpose::kYes ? ", a transposed" : "",
      key.trans_b == Transpose::kYes ? ", b transposed" : "",
      key.mode == GradientMode::kAccumulate ? ", accumulated" : "", key.scaled ? ", scaled" : "", name_of(key.epilogue),
      key.a_stride, key.b_stride, key.c_stride, key.a_alignment, key.b_alignment, key.c_alignment);
}

void classify_addresses(GemmProblem& problem) {
  problem.key.a_alignment = gemm_alignment(problem.operands.a);
  problem.key.b_alignment = gemm_alignment(problem.operands.b);
  problem.key.c_alignment = gemm_alignment(problem.operands.c);
  problem.key.bias_alignment = gemm_alignment(problem.operands.bias);
  problem.key.aux_alignment = gemm_alignment(problem.operands.aux);
}

GemmProblem gemm_problem(const GemmArgs& args, const GemmExtents& extents, const GemmVectors& vectors) {
  const DType dtype = args.a.dtype();
  GemmProblem problem{.key = {.m = extents.m,
                              .n = extents.n,
                              .k = extents.k,
                              .a_stride = args.a.dim(1),
                              .b_stride = args.b.dim(1),
                              .c_stride = args.c.dim(1),
                              .dtype = dtype,
                              .c_dtype = args.c.dtype(),
                              .a_format = dtype == DType::kU8 ? args.a_format : Format::kE4M3,
                              .b_format = dtype == DType::kU8 ? args.b_format : Format::kE4M3,
                              .a_blocks = layout_of(args.a_block_scales, args.a_layout),
                              .b_blocks = layout_of(args.b_block_scales, args.b_layout),
                              .trans_a = args.trans_a,
                              .trans_b = args.trans_b,
                              .fp32_math = dtype == DType::kF32 ? args.fp32_math : Fp32Math::kFull,
                              .epilogue = epilogue_of(args.activation, vectors.bias != nullptr),
                              .mode = args.mode,
                              .scaled = vectors.scalars != nullptr},
                      .operands = {.a = args.a.raw(),
                                   .b = args.b.raw(),
                                   .c = args.c.raw(),
                                   .bias = vectors.bias,
                                   .aux = args.aux.defined() ? args.aux.raw() : nullptr,
                                   .scalars = vectors.scalars,
                                   .a_block_scales = address_of(args.a_block_scales),
                                   .b_block_scales = address_of(args.b_block_scales)}};
  classify_addresses(problem);
  return problem;
}

}  // namespace mantissa::cuda
