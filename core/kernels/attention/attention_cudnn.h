// Scaled dot-product attention as graphs for cuDNN's fused engines, which recognise them by their form.
//
// Queries, keys and values are views of one packed tensor (B * T, (H + 2 * KV) * D), distinguished by their addresses
// and the strides of its rows; so are their gradients. Scores, softmax and sums are fp32. Probabilities and the
// gradients of scores are rounded to the operands' dtype before they are multiplied. With fewer key heads than query
// heads, each query head's gradients of keys and values are rounded to that dtype before they are added.
//
// Source of the form: NVIDIA's cudnn-frontend 1.23, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h.
#pragma once

#include "core/kernels/attention/device_cuda.h"
#include "core/kernels/attention/graph_cudnn.h"

namespace mantissa::cuda {

// Identifiers of the graph's tensors that lie in memory.
enum AttentionTensor : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOut,
  kLse,  // (B, H, T), fp32: log(sum exp(scale * q k^T)), natural: AttentionForwardArgs::lse
  kDOut,
  kDQueries,
  kDKeys,
  kDValues,
  kDelta,        // (B, H, T), fp32: rowsum(out * d_out), made by the backward pass
  kDQueriesSum,  // (B, H, T, D), fp32, must be 0 before: sum of d_queries; not in the reproducible pass
  kScale,        // number
  kMaskedScore,  // number: -Inf
  kOne,          // number: 1, takes the place of dropout in the graph
};

CudnnGraph attention_forward_graph(const Cudnn& library, const AttentionKey& key);

// kBackward adds up d_queries in fp32, in an order that varies from run to run. In kReproducibleBackward, the engine
// keeps the gradients of all scores instead, B * H * T * T elements of the operands' dtype, and multiplies them in one
// order.
CudnnGraph attention_backward_graph(const Cudnn& library, const AttentionKey& key);

}  // namespace mantissa::cuda
