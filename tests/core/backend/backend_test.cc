// Memory, copies and streams of a backend.
#include <gtest/gtest.h>

#include "core/backend/device_rates.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

Backend& backend() { return device_under_test().backend(); }
Stream& stream() { return device_under_test().stream(); }

TEST(Backend, NewMemoryIsZeroAlignedAndOnTheDevice) {
  for (const int64_t n : {0, 1, 17, 1000003}) {
    const Tensor x = backend().make_tensor(DType::kU8, {n}, "test");
    EXPECT_EQ(bytes_of(x), std::vector<std::byte>(static_cast<size_t>(n)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw()) % 64, 0u);
    EXPECT_EQ(x.device(), backend().device());
  }
}

TEST(Backend, MovesBytes) {
  for (const int64_t n : {0, 1, 3, 40001}) {
    const std::vector<double> values = reference::random_values(n, 1);
    const Tensor a = make_tensor(DType::kF32, {n}, values), b = make_unwritten(DType::kF32, {n});
    backend().copy(a, b, stream());
    EXPECT_EQ(bytes_of(b), bytes_of(a));
  }
  const Tensor a = make_unwritten(DType::kF32, {3});
  EXPECT_THROW(backend().copy(a, make_unwritten(DType::kF32, {4}), stream()), ContractError);
  EXPECT_THROW(backend().copy(a, make_unwritten(DType::kI32, {3}), stream()), ContractError);
}

TEST(Backend, HostMemoryMayBeReusedAfterAnUpload) {
  const Tensor x = make_unwritten(DType::kF32, {1001});
  std::vector<float> host(1001, 1.0f);
  backend().upload(host.data(), x, stream());
  std::fill(host.begin(), host.end(), 2.0f);
  EXPECT_EQ(values_of(x), std::vector<double>(1001, 1.0));
}

TEST(Backend, AStreamWaitsForAnEventOfAnother) {
  constexpr int64_t kSize = 1001;
  const auto first = backend().create_stream(), second = backend().create_stream();
  for (int round = 0; round < 10; ++round) {
    const Tensor a = make_unwritten(DType::kF32, {kSize}), b = make_unwritten(DType::kF32, {kSize});
    stream().synchronize();  // both have been written
    backend().fill(a, static_cast<float>(round), *first);
    second->wait(*first->record());
    backend().copy(a, b, *second);
    second->synchronize();
    EXPECT_EQ(values_of(b), std::vector<double>(kSize, round));
  }
}

TEST(Backend, KeepsStatisticsInARecord) {
  const Tensor x = backend().make_tensor(DType::kBF16, {5}, "test");
  backend().fill(x, 3.0f, stream());
  const Tensor record = backend().make_stats(stream());
  backend().run(TensorStatsArgs{.x = x, .record = record}, stream());
  EXPECT_EQ(backend().read_stats(record, stream()).sum_squares, 45.0);
  EXPECT_EQ(backend().read_stats(record, stream()).first_bad, TensorStats::kNone);
}

// Bytes a second: above a slow emulation and below any existing memory.
TEST(Backend, MeasuresTheBandwidthOfItsMemory) {
  const double bytes_per_second = measure_memory_bandwidth(backend(), stream());
  EXPECT_GT(bytes_per_second, 1e6);
  EXPECT_LT(bytes_per_second, 1e14);
}

}  // namespace
}  // namespace mantissa::kernel_test
