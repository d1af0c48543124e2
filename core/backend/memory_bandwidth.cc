#include "core/backend/memory_bandwidth.h"

#include "core/kernels/elementwise/args.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kNumel[] = {int64_t{1} << 20, int64_t{1} << 24};
constexpr double kSlowSeconds = 5e-3;
constexpr double kBudgetSeconds = 0.1;
constexpr double kBatchSeconds =
    2e-3;  // long against starting work on a device, short against a scheduler's time slice

double seconds_of_each(Backend& backend, Stream& stream, const AddArgs& args, int64_t count) {
  const auto start = Clock::now();
  for (int64_t call = 0; call < count; ++call) backend.run(args, stream);
  stream.synchronize();
  return Seconds(Clock::now() - start).count() / static_cast<double>(count);
}

}  // namespace

double measure_memory_bandwidth(Backend& backend, Stream& stream) {
  double bytes_per_second = 0.0;
  for (const int64_t numel : kNumel) {
    const Tensor a = backend.make_tensor(DType::kF32, {numel}, "memory bandwidth"),
                 b = backend.make_tensor(DType::kF32, {numel}, "memory bandwidth"),
                 y = backend.make_tensor(DType::kF32, {numel}, "memory bandwidth");
    // Fresh pages of zeros may all be one page of the system: reading them would be reading a cache.
    backend.fill(a, 1.0f, stream);
    backend.fill(b, 2.0f, stream);
    const AddArgs args{.a = a, .b = b, .y = y};
    seconds_of_each(backend, stream, args, 1);  // takes the pages of y
    double best = seconds_of_each(backend, stream, args, 1);
    const auto count = static_cast<int64_t>(std::ceil(kBatchSeconds / best));
    const auto begin = Clock::now();
    do {
      best = std::min(best, seconds_of_each(backend, stream, args, count));
    } while (Seconds(Clock::now() - begin).count() < kBudgetSeconds);
    bytes_per_second = 3.0 * static_cast<double>(a.size_bytes()) / best;
    if (best > kSlowSeconds) break;
  }
  return bytes_per_second;
}

}  // namespace mantissa
