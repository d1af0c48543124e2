#include "core/cpu/gemm_peak.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <dnnl.hpp>

namespace mantissa::cpu {
namespace {

// One layer of a transformer of width 768 on 1024 tokens: large enough for every thread, small enough to be quick.
constexpr int64_t kM = 1024, kN = 3072, kK = 768;
constexpr std::chrono::milliseconds kBudget{120};
constexpr int kMinRepetitions = 3;

dnnl::memory make_matrix(const dnnl::engine& engine, int64_t rows, int64_t columns, dnnl::memory::data_type type) {
  const dnnl::memory matrix({{rows, columns}, type, dnnl::memory::format_tag::ab}, engine);
  std::memset(matrix.get_data_handle(), 0x3f, matrix.get_desc().get_size());  // 0.75 as fp32 and as bf16
  return matrix;
}

double measure(dnnl::memory::data_type type) {
  using Clock = std::chrono::steady_clock;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory a = make_matrix(engine, kM, kK, type), b = make_matrix(engine, kK, kN, type),
                     c = make_matrix(engine, kM, kN, type);
  const dnnl::matmul matmul({dnnl::matmul::desc(a.get_desc(), b.get_desc(), c.get_desc()), engine});
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
  return 2.0 * static_cast<double>(kM * kN * kK) / best_seconds;
}

}  // namespace

double measure_gemm_peak_flops(DType dtype) {
  MANTISSA_CHECK(is_floating(dtype), "[gemm_peak] expected a floating dtype, got {}", dtype);
  const double fp32_flops = measure(dnnl::memory::data_type::f32);
  if (dtype != DType::kBF16) return fp32_flops;
  return std::max(fp32_flops, measure(dnnl::memory::data_type::bf16));
}

}  // namespace mantissa::cpu
