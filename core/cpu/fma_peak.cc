#include "core/cpu/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/base/thread_team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mantissa::cpu {
namespace {

// A burst of independent chains of multiply-adds, each in its own register. There are enough chains to hide the latency
// of two units (4 cycles each), and with two operands no more than there are registers. Sums start at different values,
// so that no two chains are equal, and stay normal. Returns a value that depends on all of them.
using Burst = float (*)(int64_t repetitions);

struct Candidate {
  const char* instruction;
  Burst burst;
  double flops_per_repetition;
};

constexpr int kChains = 12;
constexpr float kOperand = 0x1p-20f;

// Uses whatever the compiler generates for products and sums of 16-byte vectors.
float portable_burst(int64_t repetitions) {
  using Vector __attribute__((vector_size(16))) = float;
  const float start = static_cast<float>(repetitions & 1);
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + (start + static_cast<float>(i + 1));
  const Vector a = Vector{} + (kOperand + start), b = Vector{} + kOperand;
  for (int64_t n = 0; n < repetitions; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = a * b + sums[i];
  }
  Vector all{};
  for (const Vector& sum : sums) all += sum;
  return all[0];
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float avx2_burst(int64_t repetitions) {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i + 1));
  const __m256 a = _mm256_set1_ps(kOperand), b = _mm256_set1_ps(kOperand);
  for (int64_t n = 0; n < repetitions; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(a, b, sums[i]);
  }
  __m256 all = _mm256_setzero_ps();
  for (const __m256& sum : sums) all = _mm256_add_ps(all, sum);
  return _mm256_cvtss_f32(all);
}

__attribute__((target("avx512f"))) float avx512_burst(int64_t repetitions) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i + 1));
  const __m512 a = _mm512_set1_ps(kOperand), b = _mm512_set1_ps(kOperand);
  for (int64_t n = 0; n < repetitions; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(a, b, sums[i]);
  }
  __m512 all = _mm512_setzero_ps();
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  return _mm512_cvtss_f32(all);
}

__attribute__((target("avx512f,avx512bf16"))) float avx512_bf16_burst(int64_t repetitions) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i + 1));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(kOperand), _mm512_set1_ps(kOperand)), b = a;
  for (int64_t n = 0; n < repetitions; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  }
  __m512 all = _mm512_setzero_ps();
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  return _mm512_cvtss_f32(all);
}

#endif

Candidate fp32_candidate() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {"AVX-512 fp32 multiply-add", avx512_burst, kChains * 16 * 2};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"AVX2 fp32 multiply-add", avx2_burst, kChains * 8 * 2};
  }
#endif
  return {"fp32 product and sum of 16 bytes", portable_burst, kChains * 4 * 2};
}

// A burst runs one task per thread. Its time is from the start until the last task is done.
double measure(const Candidate& candidate, int count) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBursts = 80;
  constexpr int64_t kRepetitions = 300'000;  // 12 multiply-adds at 2 a cycle: 1.8 million cycles
  const int usual = threads();
  set_threads(count);
  double best_seconds = 1e9;
  std::vector<float> results(static_cast<size_t>(count));
  for (int burst = 0; burst < kBursts; ++burst) {
    const Clock::time_point start = Clock::now();
    parallel_for(count, [&](int64_t task) { results[static_cast<size_t>(task)] += candidate.burst(kRepetitions); });
    best_seconds = std::min(best_seconds, std::chrono::duration<double>(Clock::now() - start).count());
  }
  set_threads(usual);
  float all = 0.0f;
  for (const float result : results) all += result;
  MANTISSA_CHECK(all > 0.0f, "[fma_peak] expected a sum above 0, got {}", all);
  return static_cast<double>(kRepetitions) * candidate.flops_per_repetition * count / best_seconds;
}

}  // namespace

FmaPeak measure_fma_peak(DType dtype, int threads) {
  MANTISSA_CHECK(is_floating(dtype), "[fma_peak] expected a floating dtype, got {}", dtype);
  MANTISSA_CHECK(threads > 0, "[fma_peak] expected threads > 0, got {}", threads);
  const Candidate fp32 = fp32_candidate();
  FmaPeak best = {measure(fp32, threads), fp32.instruction};
#if defined(__x86_64__)
  if (dtype == DType::kBF16 && __builtin_cpu_supports("avx512bf16")) {
    const Candidate bf16 = {"AVX-512 bf16 dot product", avx512_bf16_burst, kChains * 32 * 2};
    const double flops = measure(bf16, threads);
    if (flops > best.flops) best = {flops, bf16.instruction};
  }
#endif
  return best;
}

}  // namespace mantissa::cpu
