// One tile of a GEMM, computed on the calling thread by a cached oneDNN matmul.
#pragma once

#include <cstdint>
#include <memory>

#include "core/kernels/gemm/args.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cpu {

// Parameters of a tile's matmul: c (m, n) = op(a) op(b) + bias, or c += op(a) op(b).
struct GemmTileKey {
  int64_t m, n, k;
  int64_t stride_a, stride_b, stride_c;  // elements between stored rows
  DType dtype;                           // of a and b: fp32 or bf16
  DType dtype_c;
  Transpose trans_a, trans_b;
  GradientMode mode;
  bool has_bias;  // (n) fp32
  bool operator==(const GemmTileKey&) const = default;
};

struct GemmTileArgs {
  const std::byte *a, *b;
  std::byte* c;
  const float* bias;  // null if the key has none
};

class GemmTile {
 public:
  explicit GemmTile(const GemmTileKey& key);
  ~GemmTile();
  // Thread-safe: several threads may run one tile at the same time, each on its own c.
  void run(const GemmTileArgs& args) const;

 private:
  struct Primitive;
  std::unique_ptr<Primitive> primitive_;
};

// The tile for `key`, created on first use and kept for the life of the process. Thread-safe.
const GemmTile& gemm_tile(const GemmTileKey& key);

// During its lifetime, OpenMP regions started by this thread have one thread. oneDNN then neither plans for several
// threads nor splits K over them, which would make the sum depend on their number.
class SingleThreadScope {
 public:
  SingleThreadScope();
  ~SingleThreadScope();
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int saved_threads_;
};

}  // namespace mantissa::cpu
