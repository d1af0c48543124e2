// Matrix products by oneDNN, for processors with matrix units (Intel's AMX).
//
// The output is cut into tiles that depend on the shape only. One thread computes each tile with a single-threaded
// matmul. By itself oneDNN splits K over the threads for some shapes, and the sum would depend on their number.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/base/thread_team.h"
#include "core/cpu/memory.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "core/kernels/gemm/packed_cpu.h"

namespace mantissa::cpu {
namespace {

// Parameters of a tile's matmul: c (m, n) = op(a) op(b) + bias, or c += op(a) op(b).
struct TileKey {
  int64_t m, n, k;
  int64_t stride_a, stride_b, stride_c;  // elements between stored rows
  DType dtype;                           // of a and b: fp32 or bf16
  DType dtype_c;
  Transpose trans_a, trans_b;
  GradientMode mode;
  bool has_bias;  // (n) fp32
  auto operator<=>(const TileKey&) const = default;
};

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

// During its lifetime, OpenMP regions started by this thread have one thread. oneDNN then neither plans for several
// threads nor splits K over them, which would make the sum depend on their number.
class SingleThreadScope {
 public:
  SingleThreadScope() : saved_threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreadScope() { omp_set_num_threads(saved_threads_); }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int saved_threads_;
};

// One tile of a product.
class Tile {
 public:
  explicit Tile(const TileKey& key) {
    const SingleThreadScope single_thread;
    a_ = matrix_desc(key.m, key.k, key.stride_a, key.dtype, key.trans_a);
    b_ = matrix_desc(key.k, key.n, key.stride_b, key.dtype, key.trans_b);
    c_ = matrix_desc(key.m, key.n, key.stride_c, key.dtype_c, Transpose::kNo);
    if (key.has_bias) bias_ = matrix_desc(1, key.n, key.n, DType::kF32, Transpose::kNo);
    dnnl::primitive_attr attributes;
    // The library's own scratchpad would belong to the thread that made the primitive. Ours belongs to the thread that
    // runs it.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.mode == GradientMode::kAccumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1.0f);
      attributes.set_post_ops(post_ops);
    }
    const dnnl::matmul::desc operation =
        key.has_bias ? dnnl::matmul::desc(a_, b_, bias_, c_) : dnnl::matmul::desc(a_, b_, c_);
    const dnnl::matmul::primitive_desc desc(operation, attributes, cpu_engine());
    scratch_ = desc.scratchpad_desc();
    matmul_ = dnnl::matmul(desc);
  }

  // Several threads may run one tile at the same time, each on its own c. bias: null if the key has none.
  void run(const std::byte* a, const std::byte* b, std::byte* c, const float* bias) const {
    thread_local Scratch scratch;
    thread_local dnnl::stream stream(cpu_engine());
    // oneDNN takes inputs through mutable handles but only reads them.
    const auto input = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> operands{
        {DNNL_ARG_SRC, input(a_, a)},
        {DNNL_ARG_WEIGHTS, input(b_, b)},
        {DNNL_ARG_DST, dnnl::memory(c_, cpu_engine(), c)},
        {DNNL_ARG_SCRATCHPAD, dnnl::memory(scratch_, cpu_engine(), scratch.reserve(scratch_.get_size()))}};
    if (bias != nullptr) operands.emplace(DNNL_ARG_BIAS, input(bias_, bias));
    matmul_.execute(stream, operands);
  }

 private:
  dnnl::memory::desc a_, b_, c_, bias_, scratch_;
  dnnl::matmul matmul_;
};

// The tile for `key`, created on first use and kept for the life of the process. Thread-safe.
const Tile& tile_for(const TileKey& key) {
  static std::shared_mutex mutex;
  static std::map<TileKey, Tile> tiles;  // references to values stay valid
  {
    const std::shared_lock lock(mutex);
    const auto found = tiles.find(key);
    if (found != tiles.end()) return found->second;
  }
  const std::unique_lock lock(mutex);
  return tiles.try_emplace(key, key).first->second;
}

constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 384;
constexpr int64_t kGranularity = 16;  // whole vectors, and whole tiles of the matrix units

const std::byte* element(const Tensor& tensor, int64_t row, int64_t column) {
  return tensor.raw() + (row * tensor.dim(1) + column) * static_cast<int64_t>(size_bytes(tensor.dtype()));
}

// ---- measure_gemm_peak_flops()

using Tag = dnnl::memory::format_tag;

// Products of a transformer of width 768 on 512 and 1024 tokens. The caches decide which is fastest.
struct Extents {
  int64_t m, n, k;
};
constexpr Extents kExtents[] = {{512, 768, 768}, {512, 2304, 768}, {1024, 3072, 768}};
// Weight layouts: as models store them, oneDNN's slowest, and packed by oneDNN in advance.
constexpr Tag kWeightLayouts[] = {Tag::ba, Tag::ab, Tag::any};
constexpr std::chrono::milliseconds kBudget{15};  // per combination
constexpr int kMinRepetitions = 3;

dnnl::memory make_matrix(const dnnl::engine& engine, const dnnl::memory::desc& desc) {
  const dnnl::memory matrix(desc, engine);
  std::memset(matrix.get_data_handle(), 0x3f, desc.get_size());  // about 0.75 as fp32 and as bf16
  return matrix;
}

double measure(const Extents& extents, Tag weight_layout, dnnl::memory::data_type type) {
  using Clock = std::chrono::steady_clock;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto [m, n, k] = extents;
  const dnnl::matmul::primitive_desc primitive(
      dnnl::matmul::desc({{m, k}, type, Tag::ab}, {{k, n}, type, weight_layout}, {{m, n}, type, Tag::ab}), engine);
  const dnnl::memory a = make_matrix(engine, primitive.src_desc()), b = make_matrix(engine, primitive.weights_desc()),
                     c = make_matrix(engine, primitive.dst_desc());
  const dnnl::matmul matmul(primitive);
  const auto run = [&] {
    const Clock::time_point start = Clock::now();
    matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  run();  // first touch of pages and caches
  double best_seconds = run();
  const Clock::time_point deadline = Clock::now() + kBudget;
  for (int i = 0; i < kMinRepetitions || Clock::now() < deadline; ++i) best_seconds = std::min(best_seconds, run());
  return 2.0 * static_cast<double>(m * n * k) / best_seconds;
}

double measure(dnnl::memory::data_type type) {
  double best = 0.0;
  for (const Extents& extents : kExtents) {
    for (const Tag layout : kWeightLayouts) best = std::max(best, measure(extents, layout, type));
  }
  return best;
}

}  // namespace

Bf16Gemm preferred_bf16_gemm() {
  static const Bf16Gemm preferred = [] {
    if (dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx) return Bf16Gemm::kLibrary;
    if (!is_possible(Bf16Gemm::kDotProducts)) return Bf16Gemm::kWidened;
    // VDPBF16PS runs at twice the fp32 rate on AMD's Zen 4 and Intel's Cooper Lake, but at half of it on Intel's cores
    // since Sapphire Rapids. They are meant to use AMX, which a virtual machine may hide.
    const bool half_rate = __builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake");
    return half_rate ? Bf16Gemm::kWidened : Bf16Gemm::kDotProducts;
  }();
  return preferred;
}

bool is_possible(Bf16Gemm way) {
  if (way == Bf16Gemm::kWidened) return true;
  if (way == Bf16Gemm::kDotProducts) return has_bf16_micro_kernel();
  using Isa = dnnl::cpu_isa;
  const Isa isa = dnnl::get_effective_cpu_isa();
  return isa == Isa::avx512_core || isa == Isa::avx512_core_vnni || isa == Isa::avx512_core_bf16 ||
         isa == Isa::avx512_core_amx;
}

void gemm_library(const GemmArgs& args) {
  thread_local Scratch bias_scratch;
  const GemmExtents e = check_args(args);
  const bool trans_a = args.trans_a == Transpose::kYes, trans_b = args.trans_b == Transpose::kYes;
  const Cut rows = cut_evenly(e.m, kTileRows, kGranularity), columns = cut_evenly(e.n, kTileColumns, kGranularity);
  const float* const bias = bias_as_fp32(args.bias, args.c.dtype(), bias_scratch);
  // Full and edge tiles. Looked up (or created, which may throw) before the threads start.
  const auto tile = [&](int64_t i, int64_t j) -> const Tile& {
    return tile_for({.m = rows.size(i),
                     .n = columns.size(j),
                     .k = e.k,
                     .stride_a = args.a.dim(1),
                     .stride_b = args.b.dim(1),
                     .stride_c = e.n,
                     .dtype = args.a.dtype(),
                     .dtype_c = args.c.dtype(),
                     .trans_a = args.trans_a,
                     .trans_b = args.trans_b,
                     .mode = args.mode,
                     .has_bias = bias != nullptr});
  };
  const int64_t last_row = rows.count() - 1, last_column = columns.count() - 1;
  const Tile* const tiles[2][2] = {{&tile(0, 0), &tile(0, last_column)},
                                   {&tile(last_row, 0), &tile(last_row, last_column)}};
  const int64_t tasks = rows.count() * columns.count();
  parallel_for(tasks, [&](int64_t task) {
    // Tiles of one column strip are consecutive: they share b.
    const int64_t row_task = task % rows.count(), column_task = task / rows.count();
    const int64_t i = rows.begin(row_task), j = columns.begin(column_task);
    const SingleThreadScope single_thread;
    tiles[row_task == last_row][column_task == last_column]->run(
        trans_a ? element(args.a, 0, i) : element(args.a, i, 0),
        trans_b ? element(args.b, j, 0) : element(args.b, 0, j), const_cast<std::byte*>(element(args.c, i, j)),
        bias != nullptr ? bias + j : nullptr);
  });
}

double measure_gemm_peak_flops(DType dtype) {
  MANTISSA_CHECK(is_floating(dtype), "[gemm_peak] expected a floating dtype, got {}", dtype);
  omp_set_num_threads(threads());  // for oneDNN
  const double fp32_flops = measure(dnnl::memory::data_type::f32);
  if (dtype != DType::kBF16 || !is_possible(Bf16Gemm::kLibrary)) return fp32_flops;
  return std::max(fp32_flops, measure(dnnl::memory::data_type::bf16));
}

}  // namespace mantissa::cpu
