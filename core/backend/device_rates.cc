#include "core/backend/device_rates.h"

#include <chrono>

#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/args.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// Calls are queued in a row: on an asynchronous device, one call takes less time than launch and synchronization.
template <typename Args>
double seconds_per_call(Backend& backend, Stream& stream, const Args& args, int64_t count) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) backend.run(args, stream);
  stream.synchronize();
  return Seconds(Clock::now() - start).count() / static_cast<double>(count);
}

// The least time of a call. A batch takes about `batch_seconds`: longer than launch and wait, shorter than time slices.
template <typename Args>
double least_seconds(Backend& backend, Stream& stream, const Args& args, double batch_seconds, double budget_seconds) {
  seconds_per_call(backend, stream, args, 1);  // the first call builds or chooses a primitive, and touches new pages
  double best = seconds_per_call(backend, stream, args, 1);
  const auto count = static_cast<int64_t>(std::clamp(std::ceil(batch_seconds / best), 1.0, 1000.0));
  const auto begin = Clock::now();
  do {
    best = std::min(best, seconds_per_call(backend, stream, args, count));
  } while (Seconds(Clock::now() - begin).count() < budget_seconds);
  return best;
}

// Uniform in [-1, 1): constants flip few bits, and a clock that follows power would run too fast. Repeats one block.
template <typename T, typename Convert>
void fill_with_random_values(Backend& backend, const Tensor& tensor, uint64_t seed, Stream& stream,
                             const Convert& convert) {
  const int64_t block = std::min<int64_t>(tensor.numel(), 1 << 20);
  std::vector<T> values(static_cast<size_t>(block));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(i), 0, 0, 0});
    values[i] = convert(2.0f * uniform01(words[0]) - 1.0f);
  }
  for (int64_t begin = 0; begin < tensor.numel(); begin += block) {
    backend.upload(values.data(), tensor.slice(begin, std::min(block, tensor.numel() - begin)), stream);
  }
}

void fill_with_random_values(Backend& backend, const Tensor& tensor, uint64_t seed, Stream& stream) {
  if (tensor.dtype() == DType::kU8) {
    constexpr float kCodeMax = 448.0f;  // of e4m3: codes are scaled to use the largest number
    return fill_with_random_values<uint8_t>(backend, tensor, seed, stream, [](float value) {
      return static_cast<uint8_t>(encode(Format::kE4M3, kCodeMax * value, Saturation::kYes));
    });
  }
  dispatch_with_fp64(tensor.dtype(), [&]<typename T>() {
    fill_with_random_values<T>(backend, tensor, seed, stream, [](float value) { return from_float<T>(value); });
  });
}

}  // namespace

double measure_product_flops(Backend& backend, Stream& stream, DType dtype, ProductSize size) {
  const Tensor a = backend.make_tensor(dtype, {size.m, size.k}, "GEMM peak"),
               b = backend.make_tensor(dtype, {size.n, size.k}, "GEMM peak"),
               c = backend.make_tensor(dtype == DType::kU8 ? DType::kBF16 : dtype, {size.m, size.n}, "GEMM peak");
  fill_with_random_values(backend, a, 1, stream);
  fill_with_random_values(backend, b, 2, stream);
  return size.flops() /
         least_seconds(backend, stream, GemmArgs{.a = a, .b = b, .c = c, .trans_b = Transpose::kYes}, 5e-3, 0.15);
}

double measure_gemm_flops(Backend& backend, Stream& stream, DType dtype) {
  // A product of a transformer's size, and a larger product for devices that the first does not fill.
  constexpr ProductSize kSizes[] = {{1024, 3072, 768}, {8192, 4096, 4096}};
  constexpr double kLargeEnoughSeconds = 1e-3;
  double best = 0;
  for (const ProductSize& size : kSizes) {
    const double flops = measure_product_flops(backend, stream, dtype, size);
    best = std::max(best, flops);
    if (size.flops() / flops >= kLargeEnoughSeconds) break;
  }
  return best;
}

double measure_memory_bandwidth(Backend& backend, Stream& stream) {
  constexpr int64_t kNumel[] = {int64_t{1} << 20, int64_t{1} << 24};
  constexpr double kSlowSeconds = 5e-3;
  double bytes_per_second = 0.0;
  for (const int64_t numel : kNumel) {
    const auto make = [&] { return backend.make_tensor(DType::kF32, {numel}, "memory bandwidth"); };
    const AddArgs args{.a = make(), .b = make(), .y = make()};
    // Fresh pages of zeros may share a page of the system: reads would come from a cache.
    backend.fill(args.a, 1.0f, stream);
    backend.fill(args.b, 2.0f, stream);
    const double seconds = least_seconds(backend, stream, args, 2e-3, 0.1);
    bytes_per_second = 3.0 * static_cast<double>(args.a.size_bytes()) / seconds;
    if (seconds > kSlowSeconds) break;
  }
  return bytes_per_second;
}

}  // namespace mantissa
