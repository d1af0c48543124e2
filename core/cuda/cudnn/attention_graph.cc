#include "core/cuda/cudnn/attention_graph.h"

namespace mantissa::cuda {
namespace {

// An AttentionKey in cuDNN's terms.
struct Layouts {
  explicit Layouts(const AttentionKey& key)
      : dtype(key.dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF),
        queries(rows(key, key.shape.num_heads, (key.shape.num_heads + 2 * key.shape.num_kv_heads) * key.shape.head_dim)),
        keys(rows(key, key.shape.num_kv_heads, (key.shape.num_heads + 2 * key.shape.num_kv_heads) * key.shape.head_dim)),
        out(rows(key, key.shape.num_heads, key.shape.num_heads * key.shape.head_dim)),
        all_heads(TensorLayout::contiguous(key.shape.batch, key.shape.num_heads, key.shape.sequence_length, key.shape.head_dim)),
        scores(TensorLayout::contiguous(key.shape.batch, key.shape.num_heads, key.shape.sequence_length, key.shape.sequence_length)),
        per_query(TensorLayout::contiguous(key.shape.batch, key.shape.num_heads, key.shape.sequence_length, 1)) {}

  // Heads that lie side by side in rows of `row` elements.
  static TensorLayout rows(const AttentionKey& key, int64_t heads, int64_t row) {
    return {{key.shape.batch, heads, key.shape.sequence_length, key.shape.head_dim}, {key.shape.sequence_length * row, key.shape.head_dim, row, 1}};
  }

  cudnnDataType_t dtype;
  TensorLayout queries, keys, out;  // in memory; values are laid out as keys are
  TensorLayout all_heads;           // (B, H, T, D)
  TensorLayout scores;              // (B, H, T, T)
  TensorLayout per_query;           // (B, H, T, 1)
};

GraphTensor scores_of(CudnnGraph& graph, const Layouts& layouts, const GraphTensor& queries, const GraphTensor& keys_t,
                      const GraphTensor& scale) {
  const TensorSpec fp32{CUDNN_DATA_FLOAT, layouts.scores};
  return graph.binary(CUDNN_POINTWISE_MUL, graph.matmul(queries, keys_t, fp32), scale, fp32);
}

GraphTensor masked(CudnnGraph& graph, const AttentionKey& key, const GraphTensor& scores) {
  return key.shape.mask == Mask::kCausal ? graph.keep_lower_triangle(scores, graph.scalar(kMaskedScore)) : scores;
}

// dV or dK: p^T d_out or d_s^T q, over the query heads of each key head.
void multiply_into_keys(CudnnGraph& graph, const AttentionKey& key, const Layouts& layouts, const GraphTensor& scores,
                        const GraphTensor& right, AttentionTensor to) {
  const GraphTensor scores_t = graph.transpose(scores, layouts.dtype);
  const TensorSpec result{layouts.dtype, layouts.keys, to};
  if (key.shape.num_heads == key.shape.num_kv_heads) {
    graph.matmul(scores_t, right, result);
  } else {
    const GraphTensor all = graph.matmul(scores_t, right, {layouts.dtype, layouts.all_heads});
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, all, result);
  }
}

}  // namespace

CudnnGraph attention_forward_graph(const Cudnn& library, const AttentionKey& key) {
  const Layouts layouts(key);
  const TensorSpec scores_spec{CUDNN_DATA_FLOAT, layouts.scores}, query_spec{CUDNN_DATA_FLOAT, layouts.per_query};
  CudnnGraph graph(library);
  const GraphTensor queries = graph.input(kQueries, layouts.dtype, layouts.queries);
  const GraphTensor keys_t = graph.input(kKeys, layouts.dtype, layouts.keys.transposed());
  const GraphTensor values = graph.input(kValues, layouts.dtype, layouts.keys);
  const GraphTensor scores = masked(graph, key, scores_of(graph, layouts, queries, keys_t, graph.scalar(kScale)));

  const GraphTensor largest = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, query_spec);
  const GraphTensor shifted = graph.binary(CUDNN_POINTWISE_SUB, scores, largest, scores_spec);
  const GraphTensor exponentials = graph.unary(CUDNN_POINTWISE_EXP, shifted, scores_spec);
  const GraphTensor total = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, query_spec);
  const GraphTensor log_total = graph.unary(CUDNN_POINTWISE_LOG, total, query_spec);
  graph.binary(CUDNN_POINTWISE_ADD, largest, log_total, {CUDNN_DATA_FLOAT, layouts.per_query, kLse});
  const GraphTensor probabilities =
      graph.binary(CUDNN_POINTWISE_DIV, exponentials, total, {layouts.dtype, layouts.scores});
  graph.matmul(probabilities, values, {layouts.dtype, layouts.out, kOut});
  return graph;
}

CudnnGraph attention_backward_graph(const Cudnn& library, const AttentionKey& key) {
  const Layouts layouts(key);
  const TensorSpec scores_spec{CUDNN_DATA_FLOAT, layouts.scores}, query_spec{CUDNN_DATA_FLOAT, layouts.per_query};
  CudnnGraph graph(library);
  const GraphTensor queries = graph.input(kQueries, layouts.dtype, layouts.queries);
  const GraphTensor keys_t = graph.input(kKeys, layouts.dtype, layouts.keys.transposed());
  const GraphTensor values_t = graph.input(kValues, layouts.dtype, layouts.keys.transposed());
  const GraphTensor out = graph.input(kOut, layouts.dtype, layouts.out);
  const GraphTensor d_out = graph.input(kDOut, layouts.dtype, layouts.out);
  const GraphTensor lse = graph.input(kLse, CUDNN_DATA_FLOAT, layouts.per_query);
  const GraphTensor scale = graph.scalar(kScale);

  // delta = rowsum(out * d_out)
  const GraphTensor products = graph.binary(CUDNN_POINTWISE_MUL, d_out, out, {CUDNN_DATA_FLOAT, layouts.all_heads});
  const GraphTensor row_sums = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, query_spec);
  const GraphTensor delta =
      graph.binary(CUDNN_POINTWISE_MUL, row_sums, graph.scalar(kOne), {CUDNN_DATA_FLOAT, layouts.per_query, kDelta});

  // p = exp(scale * q k^T - lse), d_v = p^T d_out
  const GraphTensor shifted =
      graph.binary(CUDNN_POINTWISE_SUB, scores_of(graph, layouts, queries, keys_t, scale), lse, scores_spec);
  const GraphTensor probabilities = graph.unary(CUDNN_POINTWISE_EXP, masked(graph, key, shifted), scores_spec);
  multiply_into_keys(graph, key, layouts, probabilities, d_out, kDValues);

  // d_s = scale * p * (d_out v^T - delta), d_k = d_s^T q
  const GraphTensor d_probabilities = graph.matmul(d_out, values_t, scores_spec);
  const GraphTensor centred = graph.binary(CUDNN_POINTWISE_SUB, d_probabilities, delta, scores_spec);
  const GraphTensor weighted = graph.binary(CUDNN_POINTWISE_MUL, centred, probabilities, scores_spec);
  const GraphTensor d_scores = graph.binary(CUDNN_POINTWISE_MUL, weighted, scale, scores_spec);
  multiply_into_keys(graph, key, layouts, d_scores, queries, kDKeys);

  // d_q = d_s k
  const GraphTensor keys = graph.transpose(keys_t, CUDNN_DATA_FLOAT);
  const TensorSpec d_queries{layouts.dtype, layouts.queries, kDQueries};
  if (key.pass == AttentionPass::kReproducibleBackward) {
    graph.matmul(d_scores, keys, d_queries);
  } else {
    const GraphTensor sum = graph.matmul(d_scores, keys, {CUDNN_DATA_FLOAT, layouts.all_heads, kDQueriesSum});
    graph.unary(CUDNN_POINTWISE_IDENTITY, sum, d_queries);
  }
  return graph;
}

}  // namespace mantissa::cuda
