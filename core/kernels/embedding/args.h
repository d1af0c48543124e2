// Token and position embedding, and rotary position embedding (RoPE).
#pragma once

#include <string>

#include "core/kernels/embedding/rope_frequencies.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {

enum class Rotation : uint8_t { kForward, kInverse };

// y (R, C) = token_table[tokens[r]] + position_table[position of r in its document]; position_table may be undefined.
// tokens (R) i32; tables (V, C), (>= sequence_length, C) float. tokens must be in [0, V); the data readers check this.
// starts: core/kernels/documents.h.
struct EmbeddingForwardArgs {
  static constexpr std::string_view kName = "embedding_forward";
  Tensor tokens{}, starts{}, token_table{}, position_table{}, y{};
  int64_t sequence_length = 0;

  static auto operands(auto& a) { return std::array{&a.tokens, &a.starts, &a.token_table, &a.position_table, &a.y}; }
};

// Gradients fp32: d_token_table (V, C), d_position_table (P, C) or undefined; kWrite also clears rows that no token
// used.
struct EmbeddingBackwardArgs {
  static constexpr std::string_view kName = "embedding_backward";
  Tensor tokens{}, starts{}, dy{}, d_token_table{}, d_position_table{};
  int64_t sequence_length = 0;
  GradientMode token_mode = GradientMode::kWrite, position_mode = GradientMode::kWrite;

  static auto operands(auto& a) {
    return std::array{&a.tokens, &a.starts, &a.dy, &a.d_token_table, &a.d_position_table};
  }
};

// Rotary position embedding, half-split pairs (i, i + D/2), angle = position * frequency of the pair (Su et al. 2021).
// Rotates the first `rotated_heads` heads of each row of x (R, row_heads * D) and copies the others. position: that of
// the row in its document (core/kernels/documents.h). kInverse is the derivative. y may be x. D is even.
struct RopeArgs {
  static constexpr std::string_view kName = "rope";
  Tensor x{}, starts{}, y{};
  int64_t sequence_length = 0, row_heads = 0, rotated_heads = 0, head_dim = 0;
  RopeFrequencies frequencies{};
  Rotation rotation = Rotation::kForward;

  static auto operands(auto& a) { return std::array{&a.x, &a.starts, &a.y}; }
};

MANTISSA_DECLARE_KERNEL(EmbeddingForwardArgs, Rows)   // y
MANTISSA_DECLARE_KERNEL(EmbeddingBackwardArgs, Rows)  // dy
MANTISSA_DECLARE_KERNEL(RopeArgs, Rows)               // x

KernelWork work_of(const EmbeddingForwardArgs& args);
KernelWork work_of(const EmbeddingBackwardArgs& args);
std::string variant_of(const EmbeddingBackwardArgs& args);
KernelWork work_of(const RopeArgs& args);
std::string variant_of(const RopeArgs& args);

namespace cuda {
void token_gradient(const EmbeddingBackwardArgs& args, const Rows& rows, CudaStream& stream);  // a part of run()
}  // namespace cuda

}  // namespace mantissa
