#include "core/kernels/gemm/tile_cpu.h"

#include <omp.h>

#include <dnnl.hpp>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/cpu/memory.h"

namespace mantissa::cpu {
namespace {

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc matrix_desc(int64_t rows, int64_t columns, int64_t stride, DType dtype, Transpose transpose) {
  using Type = dnnl::memory::data_type;
  const dnnl::memory::dims strides =
      transpose == Transpose::kYes ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{rows, columns}, dtype == DType::kBF16 ? Type::bf16 : Type::f32, strides};
}

struct KeyHash {
  size_t operator()(const GemmTileKey& key) const {
    uint64_t hash = 0;
    for (const int64_t value :
         {static_cast<int64_t>(key.dtype), static_cast<int64_t>(key.dtype_c), static_cast<int64_t>(key.trans_a),
          static_cast<int64_t>(key.trans_b), static_cast<int64_t>(key.mode), static_cast<int64_t>(key.has_bias), key.m,
          key.n, key.k, key.stride_a, key.stride_b, key.stride_c}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
  }
};

}  // namespace

SingleThreadScope::SingleThreadScope() : saved_threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
SingleThreadScope::~SingleThreadScope() { omp_set_num_threads(saved_threads_); }

struct GemmTile::Primitive {
  dnnl::memory::desc a, b, c, bias, scratch;
  dnnl::matmul matmul;
};

GemmTile::GemmTile(const GemmTileKey& key) : primitive_(std::make_unique<Primitive>()) {
  const SingleThreadScope single_thread;
  Primitive& p = *primitive_;
  p.a = matrix_desc(key.m, key.k, key.stride_a, key.dtype, key.trans_a);
  p.b = matrix_desc(key.k, key.n, key.stride_b, key.dtype, key.trans_b);
  p.c = matrix_desc(key.m, key.n, key.stride_c, key.dtype_c, Transpose::kNo);
  if (key.has_bias) p.bias = matrix_desc(1, key.n, key.n, DType::kF32, Transpose::kNo);
  dnnl::primitive_attr attributes;
  // The library's own scratchpad would belong to the thread that made the primitive. Ours belongs to the one that runs
  // it.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.mode == GradientMode::kAccumulate) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(1.0f);
    attributes.set_post_ops(post_ops);
  }
  const dnnl::matmul::desc operation =
      key.has_bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
  const dnnl::matmul::primitive_desc desc(operation, attributes, cpu_engine());
  p.scratch = desc.scratchpad_desc();
  p.matmul = dnnl::matmul(desc);
}

GemmTile::~GemmTile() = default;

void GemmTile::run(const GemmTileArgs& args) const {
  thread_local Scratch scratch;
  thread_local dnnl::stream stream(cpu_engine());
  const Primitive& p = *primitive_;
  // oneDNN takes inputs through mutable handles but only reads them.
  const auto input = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> operands{
      {DNNL_ARG_SRC, input(p.a, args.a)},
      {DNNL_ARG_WEIGHTS, input(p.b, args.b)},
      {DNNL_ARG_DST, dnnl::memory(p.c, cpu_engine(), args.c)},
      {DNNL_ARG_SCRATCHPAD, dnnl::memory(p.scratch, cpu_engine(), scratch.reserve(p.scratch.get_size()))}};
  if (args.bias != nullptr) operands.emplace(DNNL_ARG_BIAS, input(p.bias, args.bias));
  p.matmul.execute(stream, operands);
}

const GemmTile& gemm_tile(const GemmTileKey& key) {
  static std::shared_mutex mutex;
  static std::unordered_map<GemmTileKey, GemmTile, KeyHash> tiles;  // references to values stay valid
  {
    const std::shared_lock lock(mutex);
    const auto found = tiles.find(key);
    if (found != tiles.end()) return found->second;
  }
  const std::unique_lock lock(mutex);
  return tiles.try_emplace(key, key).first->second;
}

}  // namespace mantissa::cpu
