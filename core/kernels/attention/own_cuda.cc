#include "core/kernels/attention/own_cuda.h"

#include <cstdint>

namespace mantissa::cuda {
namespace {

template <typename... Operands>
bool fits(const AttentionShape& shape, const Tensor& qkv, const Operands&... others) {
  constexpr int64_t kMaxHeadDim = 128;
  constexpr uintptr_t kChunkBytes = 16;
  const auto aligned = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.raw()) % kChunkBytes == 0;
  };
  return size_bytes(qkv.dtype()) == 2 && shape.head_dim <= kMaxHeadDim &&
         static_cast<uintptr_t>(shape.head_dim) * 2 % kChunkBytes == 0 && shape.scale > 0.0f && aligned(qkv) &&
         (aligned(others) && ...);
}

}  // namespace

bool fits_tensor_cores(const AttentionForwardArgs& args) { return fits(args.shape, args.qkv, args.out); }
bool fits_tensor_cores(const AttentionBackwardArgs& args) {
  return fits(args.shape, args.qkv, args.out, args.d_out, args.d_qkv);
}

void own_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  (fits_tensor_cores(args) ? attention_forward_mma : attention_forward_simt)(args, stream);
}

void own_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  const AttentionRowTerms terms = attention_row_terms(args, stream);
  if (!fits_tensor_cores(args)) return attention_backward_simt(args, terms, stream);
  attention_keys_backward_mma(args, terms, stream);
  attention_queries_backward_mma(args, terms, stream);
}

}  // namespace mantissa::cuda
