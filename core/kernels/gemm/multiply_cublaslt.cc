// c = op(a) op(b) [+ bias], or c += op(a) op(b): summed in fp32, partial sums included, and rounded once on store.
//
// Activations use the library's epilogues if it has a kernel for them, else the kernels of gelu.
//
// The library adds only a bias of c's dtype at a multiple of 16 bytes, and no preference changes that. Any other bias
// is converted or copied first, as GemmArgs says.
//
// Scales of a and b make alpha: the library reads it in the workspace (write_scalars()), or a factor for each operand
// of codes. The bias is added after the multiplication by alpha.
//
// Operands are used where they are. If the library has no algorithm for their addresses or strides (they need only be
// aligned to an element), they are copied into aligned rows, for which an algorithm always exists.
#include "core/base/round_up.h"
#include "core/cuda/runtime/runtime.h"
#include "core/kernels/activation/args.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/choice_cublaslt.h"
#include "core/kernels/gemm/steps.h"

namespace mantissa::cuda {
namespace {

// Every piece of the workspace has the alignment of the workspace itself.
constexpr size_t kPieceAlignmentBytes = 256;
size_t piece_bytes(size_t bytes) { return round_up(bytes, kPieceAlignmentBytes); }
bool has_scales(const GemmArgs& args) { return args.a_scale.defined() || args.b_scale.defined(); }

bool is_usable_in_place(const Tensor& bias, DType c_dtype) {
  return bias.dtype() == c_dtype && gemm_alignment(bias.raw()) == kGemmAlignmentBytes;
}

// A matrix that is copied into aligned rows, or out of them.
struct StagedMatrix {
  std::byte* given = nullptr;
  int64_t rows = 0, columns = 0;
  size_t element_bytes = 0;
  std::byte* staged = nullptr;

  StagedMatrix(const Tensor& matrix)
      : given(matrix.raw()),
        rows(matrix.dim(0)),
        columns(matrix.dim(1)),
        element_bytes(static_cast<size_t>(size_bytes(matrix.dtype()))) {}

  size_t given_row_bytes() const { return static_cast<size_t>(columns) * element_bytes; }
  size_t staged_row_bytes() const { return round_up(given_row_bytes(), kGemmAlignmentBytes); }
  size_t bytes() const { return piece_bytes(static_cast<size_t>(rows) * staged_row_bytes()); }
  int64_t stride() const { return static_cast<int64_t>(staged_row_bytes() / element_bytes); }
  bool is_aligned() const {
    return gemm_alignment(given) == kGemmAlignmentBytes && given_row_bytes() == staged_row_bytes();
  }

  void copy_in(CudaStream& stream) const { copy(staged, staged_row_bytes(), given, given_row_bytes(), stream); }
  void copy_out(CudaStream& stream) const { copy(given, given_row_bytes(), staged, staged_row_bytes(), stream); }

 private:
  void copy(std::byte* to, size_t to_row_bytes, const std::byte* from, size_t from_row_bytes,
            CudaStream& stream) const {
    copy_rows_async({to, to_row_bytes, from, from_row_bytes, given_row_bytes(), static_cast<size_t>(rows)},
                    stream.handle());
  }
};

// args.bias for the library: in place, or converted into the first piece of the workspace.
void* place_bias(const GemmArgs& args, std::byte* converted, CudaStream& stream) {
  if (!args.bias.defined()) return nullptr;
  if (is_usable_in_place(args.bias, args.c.dtype())) return args.bias.raw();
  const size_t bytes = static_cast<size_t>(args.bias.numel() * size_bytes(args.c.dtype()));
  const auto storage = std::make_shared<Storage>(converted, bytes, args.bias.device(), nullptr);
  run(CastArgs{.src = args.bias, .dst = Tensor(storage, args.c.dtype(), args.bias.shape())}, stream);
  return converted;
}

size_t converted_bias_bytes(const GemmArgs& args) {
  if (!args.bias.defined() || is_usable_in_place(args.bias, args.c.dtype())) return 0;
  return piece_bytes(static_cast<size_t>(args.bias.numel() * size_bytes(args.c.dtype())));
}

// The bytes of workspace that place_vectors() uses.
size_t vectors_bytes(const GemmArgs& args) {
  return converted_bias_bytes(args) + (has_scales(args) ? kPieceAlignmentBytes : 0);
}

GemmVectors place_vectors(const GemmArgs& args, std::byte* workspace, CudaStream& stream) {
  GemmVectors vectors{.bias = place_bias(args, workspace, stream)};
  if (!has_scales(args)) return vectors;
  auto* const scalars = reinterpret_cast<float*>(workspace + converted_bias_bytes(args));
  (args.a.dtype() == DType::kU8 ? write_inverse_scales : write_scalars)(args, scalars, stream);
  vectors.scalars = scalars;
  return vectors;
}

bool try_multiply_staged(GemmDevice& device, const GemmArgs& args, const GemmExtents& extents, CudaStream& stream) {
  StagedMatrix a(args.a), b(args.b), c(args.c);
  if (a.is_aligned() && b.is_aligned() && c.is_aligned()) return false;  // a copy would change nothing
  const size_t before = vectors_bytes(args);
  // One request, because the workspace may move when it grows. The vectors are placed again.
  std::byte* const workspace = stream.workspace(before + a.bytes() + b.bytes() + c.bytes());
  a.staged = workspace + before;
  b.staged = a.staged + a.bytes();
  c.staged = b.staged + b.bytes();
  a.copy_in(stream);
  b.copy_in(stream);
  if (args.mode == GradientMode::kAccumulate) c.copy_in(stream);

  GemmProblem problem = gemm_problem(args, extents, place_vectors(args, workspace, stream));
  problem.operands.a = a.staged;
  problem.operands.b = b.staged;
  problem.operands.c = c.staged;
  problem.key.a_stride = a.stride();
  problem.key.b_stride = b.stride();
  problem.key.c_stride = c.stride();
  classify_addresses(problem);
  if (!device.try_multiply(problem, stream)) return false;
  c.copy_out(stream);
  return true;
}

}  // namespace

void multiply(GemmDevice& device, const GemmArgs& args, CudaStream& stream) {
  const GemmExtents extents = check_args(args);
  const auto multiply_again = [&](const GemmArgs& product) { multiply(device, product, stream); };
  const auto run_on_stream = [&](const auto& step) { run(step, stream); };
  if (args.bias_gradient.defined()) return gemm_then_bias_gradient(args, multiply_again, run_on_stream);
  const bool is_plain = args.activation == GemmActivation::kNone;
  if (is_plain || (device.fuses_gelu() && has_epilogue(args))) {
    const size_t bytes = vectors_bytes(args);
    std::byte* const workspace = bytes > 0 ? stream.workspace(bytes) : nullptr;
    const GemmProblem problem = gemm_problem(args, extents, place_vectors(args, workspace, stream));
    if (device.try_multiply(problem, stream)) return;
    if (is_plain && try_multiply_staged(device, args, extents, stream)) return;
    if (is_plain) {
      throw CudaError(
          fmt::format("[gemm] cuBLASLt has no algorithm for {}{}", describe(problem.key),
                      is_of_codes(problem.key) ? "; set cuda.narrow_math=emulated to avoid such products" : ""));
    }
  }
  gemm_in_steps(args, multiply_again, run_on_stream);
}

}  // namespace mantissa::cuda
