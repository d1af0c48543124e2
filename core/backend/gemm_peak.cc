#include "core/backend/gemm_peak.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "core/kernels/gemm/args.h"
#include "core/tensor/format.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// Of a transformer's size, and a larger one for devices that it does not fill.
constexpr ProductSize kSizes[] = {{1024, 3072, 768}, {8192, 4096, 4096}};
constexpr double kLargeEnoughSeconds = 1e-3;
constexpr double kBatchSeconds = 5e-3;  // long against starting work on a device and waiting for it
constexpr double kBudgetSeconds = 0.15;
constexpr float kCodeMax = 448.0f;  // of e4m3: codes are scaled so that the largest number is used

// Uniform in [-1, 1): constant operands would flip few bits, and a device whose clock follows its power would run
// faster than it does with real ones. One block of values is sent again and again.
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
    return fill_with_random_values<uint8_t>(backend, tensor, seed, stream, [](float value) {
      return static_cast<uint8_t>(encode(Format::kE4M3, kCodeMax * value, Saturation::kYes));
    });
  }
  dispatch(tensor.dtype(), [&]<typename T>() {
    fill_with_random_values<T>(backend, tensor, seed, stream, [](float value) { return from_float<T>(value); });
  });
}

// Products queued one after the other: on a device that works beside the host, a single one would be lost in the time
// that it takes to start it and to hear of its end.
double seconds_of_each(Backend& backend, Stream& stream, const GemmArgs& args, int64_t count) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) backend.run(args, stream);
  stream.synchronize();
  return Seconds(Clock::now() - start).count() / static_cast<double>(count);
}

}  // namespace

double measure_product_flops(Backend& backend, Stream& stream, DType dtype, ProductSize size) {
  const Tensor a = backend.make_tensor(dtype, {size.m, size.k}, "GEMM peak"),
               b = backend.make_tensor(dtype, {size.n, size.k}, "GEMM peak"),
               c = backend.make_tensor(dtype == DType::kU8 ? DType::kBF16 : dtype, {size.m, size.n}, "GEMM peak");
  fill_with_random_values(backend, a, 1, stream);
  fill_with_random_values(backend, b, 2, stream);
  const GemmArgs args{.a = a, .b = b, .c = c, .trans_b = Transpose::kYes};
  seconds_of_each(backend, stream, args, 1);  // the first call builds the primitive, or chooses one
  double best = seconds_of_each(backend, stream, args, 1);
  const auto count = static_cast<int64_t>(std::clamp(std::ceil(kBatchSeconds / best), 1.0, 1000.0));
  const auto begin = Clock::now();
  do {
    best = std::min(best, seconds_of_each(backend, stream, args, count));
  } while (Seconds(Clock::now() - begin).count() < kBudgetSeconds);
  return size.flops() / best;
}

double measure_gemm_flops(Backend& backend, Stream& stream, DType dtype) {
  double best = 0;
  for (const ProductSize& size : kSizes) {
    const double flops = measure_product_flops(backend, stream, dtype, size);
    best = std::max(best, flops);
    if (size.flops() / flops >= kLargeEnoughSeconds) break;
  }
  return best;
}

}  // namespace mantissa
