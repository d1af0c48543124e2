#include "core/backend/memory_bandwidth.h"

#include <algorithm>
#include <chrono>

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kNumel[] = {int64_t{1} << 20, int64_t{1} << 24};
constexpr double kSlowSeconds = 5e-3;
constexpr double kBudgetSeconds = 0.1;
constexpr int kCalls = 4;  // queued behind each other, so that a device does not wait for the host

double seconds_of_each(Backend& backend, Stream& stream, const AddArgs& args) {
  const auto start = Clock::now();
  for (int call = 0; call < kCalls; ++call) backend.add(args, stream);
  stream.synchronize();
  return Seconds(Clock::now() - start).count() / kCalls;
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
    double best = seconds_of_each(backend, stream, args);  // takes the pages of y, too
    const auto begin = Clock::now();
    do {
      best = std::min(best, seconds_of_each(backend, stream, args));
    } while (Seconds(Clock::now() - begin).count() < kBudgetSeconds);
    bytes_per_second = 3.0 * static_cast<double>(a.size_bytes()) / best;
    if (best > kSlowSeconds) break;
  }
  return bytes_per_second;
}

}  // namespace mantissa
