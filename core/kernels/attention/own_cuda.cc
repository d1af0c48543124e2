#include "core/kernels/attention/own_cuda.h"

#include <cstdint>

#include "core/kernels/attention/paths_cuda.h"

namespace mantissa::cuda {
namespace {

template <typename... Operands>
bool fits(const AttentionShape& extents, const Tensor& qkv, const Operands&... others) {
  constexpr int64_t kMaxHeadDim = 128;
  constexpr uintptr_t kChunkBytes = 16;
  const auto aligned = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.raw()) % kChunkBytes == 0;
  };
  return size_bytes(qkv.dtype()) == 2 && extents.head_dim <= kMaxHeadDim &&
         static_cast<uintptr_t>(extents.head_dim) * 2 % kChunkBytes == 0 && extents.scale > 0.0f && aligned(qkv) &&
         (aligned(others) && ...);
}

}  // namespace

bool fits_tensor_cores(const AttentionForwardArgs& args, const AttentionShape& extents) {
  return fits(extents, args.qkv, args.out);
}
bool fits_tensor_cores(const AttentionBackwardArgs& args, const AttentionShape& extents) {
  return fits(extents, args.qkv, args.out, args.d_out, args.d_qkv);
}

void own_attention_forward(const AttentionForwardArgs& args, const AttentionShape& extents, CudaStream& stream) {
  (fits_tensor_cores(args, extents) ? attention_forward_mma : attention_forward_simt)(args, extents, stream);
}

void own_attention_backward(const AttentionBackwardArgs& args, const AttentionShape& extents, CudaStream& stream) {
  const AttentionRowTerms terms = attention_row_terms(args, extents, stream);
  const bool mma = fits_tensor_cores(args, extents);
  (mma ? attention_keys_backward_mma : attention_keys_backward_simt)(args, extents, terms, stream);
  (mma ? attention_queries_backward_mma : attention_queries_backward_simt)(args, extents, terms, stream);
}

}  // namespace mantissa::cuda
