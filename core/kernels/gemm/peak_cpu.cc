#include "core/kernels/gemm/peak_cpu.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <dnnl.hpp>

#include "core/base/thread_team.h"
#include "core/kernels/gemm/bf16_cpu.h"

namespace mantissa::cpu {
namespace {

using Tag = dnnl::memory::format_tag;

// Products of a transformer of width 768 on 512 and 1024 tokens. It depends on the caches which one is fastest.
struct Extents {
  int64_t m, n, k;
};
constexpr Extents kExtents[] = {{512, 768, 768}, {512, 2304, 768}, {1024, 3072, 768}};
// Weight layouts: as models store them, the one that oneDNN likes least, and packed by oneDNN in advance.
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

double measure_gemm_peak_flops(DType dtype) {
  MANTISSA_CHECK(is_floating(dtype), "[gemm_peak] expected a floating dtype, got {}", dtype);
  omp_set_num_threads(threads());  // for oneDNN
  const double fp32_flops = measure(dnnl::memory::data_type::f32);
  if (dtype != DType::kBF16 || !is_possible(Bf16Gemm::kLibrary)) return fp32_flops;
  return std::max(fp32_flops, measure(dnnl::memory::data_type::bf16));
}

}  // namespace mantissa::cpu
