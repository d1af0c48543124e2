#include "core/cpu/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/base/check.h"
#include "core/base/thread_team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/fma_peak.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

constexpr int kChains = 12;
constexpr float kOperand = 0x1p-20f;

// A burst of independent chains of multiply-adds, each in its own register. There are enough chains to hide the latency
// of two units (4 cycles each), and with two operands no more than there are registers. Sums start at different values,
// so that no two chains are equal, and stay normal. Returns a value that depends on all of them.
float fp32_chains(int64_t repetitions) {
  const FloatTag df;
  const float start = static_cast<float>(repetitions & 1);  // unknown to the compiler
  FloatVec sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(df, start + static_cast<float>(i + 1));
  const FloatVec a = hn::Set(df, kOperand + start), b = hn::Set(df, kOperand);
  for (int64_t n = 0; n < repetitions; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = hn::MulAdd(a, b, sums[i]);
  }
  FloatVec all = hn::Zero(df);
  for (const FloatVec& sum : sums) all = hn::Add(all, sum);
  return hn::GetLane(all);
}

int64_t lanes_of_fp32() { return float_lanes(); }

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(fp32_chains);
HWY_EXPORT(lanes_of_fp32);

namespace {

using HWY_NAMESPACE::kChains;
using HWY_NAMESPACE::kOperand;

struct Burst {
  const char* instruction;
  float (*run)(int64_t repetitions);
  int64_t flops_per_repetition;
};

Burst fp32_burst() {
  const int64_t lanes = HWY_DYNAMIC_DISPATCH(lanes_of_fp32)();
  const char* const instruction = lanes == 16  ? "AVX-512 fp32 multiply-add"
                                  : lanes == 8 ? "AVX2 fp32 multiply-add"
                                               : "fp32 product and sum of 16 bytes";
  return {instruction, [](int64_t n) { return HWY_DYNAMIC_DISPATCH(fp32_chains)(n); }, 2 * kChains * lanes};
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) float bf16_chains(int64_t repetitions) {
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

// A burst runs one task per thread. Its time is from the start until the last task is done.
double measure(const Burst& burst, int count) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBursts = 80;
  constexpr int64_t kRepetitions = 300'000;  // 12 multiply-adds at 2 a cycle: 1.8 million cycles
  const int usual = threads();
  set_threads(count);
  double best_seconds = 1e9;
  std::vector<float> results(static_cast<size_t>(count));
  for (int i = 0; i < kBursts; ++i) {
    const Clock::time_point start = Clock::now();
    parallel_for(count, [&](int64_t task) { results[static_cast<size_t>(task)] += burst.run(kRepetitions); });
    best_seconds = std::min(best_seconds, std::chrono::duration<double>(Clock::now() - start).count());
  }
  set_threads(usual);
  float all = 0.0f;
  for (const float result : results) all += result;
  MANTISSA_CHECK(all > 0.0f, "[fma_peak] expected a sum above 0, got {}", all);
  return static_cast<double>(kRepetitions * burst.flops_per_repetition * count) / best_seconds;
}

}  // namespace

FmaPeak measure_fma_peak(DType dtype, int threads) {
  MANTISSA_CHECK(is_floating(dtype), "[fma_peak] expected a floating dtype, got {}", dtype);
  MANTISSA_CHECK(threads > 0, "[fma_peak] expected threads > 0, got {}", threads);
  const Burst fp32 = fp32_burst();
  FmaPeak best = {measure(fp32, threads), fp32.instruction};
#if defined(__x86_64__)
  if (dtype == DType::kBF16 && __builtin_cpu_supports("avx512bf16")) {
    const Burst bf16 = {"AVX-512 bf16 dot product", bf16_chains, kChains * 32 * 2};
    const double flops = measure(bf16, threads);
    if (flops > best.flops) best = {flops, bf16.instruction};
  }
#endif
  return best;
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
