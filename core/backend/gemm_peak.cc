#include "core/backend/gemm_peak.h"

#include <algorithm>
#include <chrono>

namespace mantissa {

double measure_gemm_flops(Backend& backend, Stream& stream, DType dtype) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kM = 1024, kN = 3072, kK = 768;
  constexpr double kFlops = 2.0 * kM * kN * kK;
  constexpr std::chrono::milliseconds kBudget(150);
  const Tensor a = backend.make_tensor(dtype, {kM, kK}, "GEMM peak"),
               b = backend.make_tensor(dtype, {kN, kK}, "GEMM peak"),
               c = backend.make_tensor(dtype, {kM, kN}, "GEMM peak");
  backend.fill(a, 0.5f, stream);
  backend.fill(b, 0.25f, stream);
  const GemmArgs args{.a = a, .b = b, .c = c, .trans_b = Transpose::kYes};
  backend.gemm(args, stream);  // the first call builds the primitive
  stream.synchronize();
  double best_seconds = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    backend.gemm(args, stream);
    stream.synchronize();
    best_seconds = std::min(best_seconds, std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() - begin < kBudget);
  return kFlops / best_seconds;
}

}  // namespace mantissa
