#include "core/kernels/attention/graph_cudnn.h"

#include <fmt/core.h>

#include <limits>

#include "core/base/round_up.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

// An AttentionKey in cuDNN's terms.
struct Layouts {
  explicit Layouts(const AttentionKey& key) : Layouts(key.dtype, key.shape) {}
  Layouts(DType dtype, const AttentionShape& s)
      : dtype(dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF),
        queries(rows(s, s.num_heads, s.qkv_row())),
        keys(rows(s, s.num_kv_heads, s.qkv_row())),
        out(rows(s, s.num_heads, s.out_row())),
        all_heads(TensorLayout::contiguous(s.batch, s.num_heads, s.sequence_length, s.head_dim)),
        scores(TensorLayout::contiguous(s.batch, s.num_heads, s.sequence_length, s.sequence_length)),
        per_query(TensorLayout::contiguous(s.batch, s.num_heads, s.sequence_length, 1)) {}

  // Heads that lie side by side in rows of `row` elements.
  static TensorLayout rows(const AttentionShape& s, int64_t heads, int64_t row) {
    return {{s.batch, heads, s.sequence_length, s.head_dim}, {s.sequence_length * row, s.head_dim, row, 1}};
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

// ---- The engine: owns the library handle and binds tensors to plans.

constexpr size_t kAlignmentBytes = 256;

size_t padded(int64_t bytes) { return round_up(static_cast<size_t>(bytes), kAlignmentBytes); }

// Uses the engine's handle: the engine outlives its plans.
class CudnnAttentionPlan final : public AttentionPlan {
 public:
  CudnnAttentionPlan(const Cudnn& library, cudnnHandle_t handle, const AttentionKey& key)
      : library_(library),
        handle_(handle),
        key_(key),
        plan_(library, {.handle = handle},
              key.pass == AttentionPass::kForward ? attention_forward_graph(library, key)
                                                  : attention_backward_graph(library, key)) {}

  size_t workspace_bytes() const override {
    return delta_bytes() + d_queries_sum_bytes() + padded(plan_.workspace_bytes());
  }

  void run(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    CudnnPlan::Bindings bindings;
    bind_views(bindings, args.qkv, {kQueries, kKeys, kValues});
    bindings.bind(kOut, args.out.raw());
    bindings.bind(kLse, args.lse.raw());
    run_plan(bindings, args.shape.scale, workspace, stream);
  }

  void run(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    CudnnPlan::Bindings bindings;
    bind_views(bindings, args.qkv, {kQueries, kKeys, kValues});
    bind_views(bindings, args.d_qkv, {kDQueries, kDKeys, kDValues});
    bindings.bind(kOut, args.out.raw());
    bindings.bind(kDOut, args.d_out.raw());
    bindings.bind(kLse, args.lse.raw());
    bindings.bind(kDelta, workspace);
    workspace += delta_bytes();
    if (d_queries_sum_bytes() > 0) {
      set_bytes_async(workspace, 0, d_queries_sum_bytes(), stream.handle());  // cuDNN only adds to it
      bindings.bind(kDQueriesSum, workspace);
    }
    workspace += d_queries_sum_bytes();
    float one = 1.0f;
    bindings.bind(kOne, &one);
    run_plan(bindings, args.shape.scale, workspace, stream);
  }

 private:
  int64_t rows() const { return key_.shape.batch * key_.shape.num_heads * key_.shape.sequence_length; }
  size_t delta_bytes() const {
    return key_.pass == AttentionPass::kForward ? 0 : padded(rows() * static_cast<int64_t>(sizeof(float)));
  }
  size_t d_queries_sum_bytes() const {
    return key_.pass == AttentionPass::kBackward
               ? padded(rows() * key_.shape.head_dim * static_cast<int64_t>(sizeof(float)))
               : 0;
  }

  // Binds the queries, keys and values in a packed tensor.
  void bind_views(CudnnPlan::Bindings& bindings, const Tensor& packed, std::array<AttentionTensor, 3> to) const {
    auto* data = static_cast<std::byte*>(packed.raw());
    const int64_t head_bytes = key_.shape.head_dim * static_cast<int64_t>(size_bytes(key_.dtype));
    bindings.bind(to[0], data);
    bindings.bind(to[1], data + key_.shape.num_heads * head_bytes);
    bindings.bind(to[2], data + (key_.shape.num_heads + key_.shape.num_kv_heads) * head_bytes);
  }

  void run_plan(CudnnPlan::Bindings& bindings, float scale, std::byte* workspace, CudaStream& stream) const {
    float masked_score = -std::numeric_limits<float>::infinity();
    bindings.bind(kScale, &scale);
    if (key_.shape.mask == Mask::kCausal) bindings.bind(kMaskedScore, &masked_score);
    check_cudnn(library_, library_.set_stream(handle_, stream.handle()), "cudnnSetStream");
    plan_.run(handle_, bindings, workspace);
  }

  const Cudnn& library_;
  const cudnnHandle_t handle_;
  const AttentionKey key_;
  const CudnnPlan plan_;
};

class CudnnAttention final : public AttentionEngine {
 public:
  CudnnAttention(const Cudnn& library, int index) : library_(library) {
    // cuDNN has other engines for other devices, and these graphs are not tested with them.
    const DeviceProperties device = device_properties(index);
    if (device.major != 8 && device.major != 9) {
      throw ConfigError(fmt::format("cuDNN's attention is used on compute capability 8 and 9, not on {}.{} ({})",
                                    device.major, device.minor, device.name));
    }
    set_device(index);
    check_cudnn(library_, library_.create(&handle_), "cudnnCreate");
  }
  ~CudnnAttention() override { library_.destroy(handle_); }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) override {
    return std::make_unique<CudnnAttentionPlan>(library_, handle_, key);
  }

 private:
  const Cudnn& library_;
  cudnnHandle_t handle_ = nullptr;
};

[[maybe_unused]] const bool kRegistered = [] {
  open_cudnn_attention = [](int index) -> std::unique_ptr<AttentionEngine> {
    return std::make_unique<CudnnAttention>(cudnn(), index);
  };
  return true;
}();

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
