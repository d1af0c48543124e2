#include "core/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/backend/registry.h"

namespace mantissa {
namespace {

TEST(CpuBackend, IsRegisteredByLinkingIt) {
  const std::vector<std::string> names = backend_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "cpu"), names.end());
  const auto backend = create_backend("cpu");
  EXPECT_EQ(backend->device(), Device{});
  for (const char* part : {"cpu: ", " thread(s), ", "oneDNN "}) {
    EXPECT_NE(backend->describe().find(part), std::string::npos) << backend->describe();
  }
}

TEST(CpuBackend, CopiesFillsAndMovesBytes) {
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  const Tensor a = backend->make_tensor(DType::kF32, {3}, "a"), b = backend->make_tensor(DType::kF32, {3}, "b");
  backend->fill(a, 2.5f, *stream);
  backend->copy(a, b, *stream);
  float host[3] = {};
  backend->download(b, host, *stream);
  EXPECT_EQ(host[2], 2.5f);
  host[1] = 7.0f;
  backend->upload(host, a, *stream);
  EXPECT_EQ(a.data<float>()[1], 7.0f);
  EXPECT_THROW(backend->copy(a, backend->make_tensor(DType::kF32, {4}, "c"), *stream), ContractError);
  EXPECT_THROW(backend->copy(a, backend->make_tensor(DType::kI32, {3}, "c"), *stream), ContractError);
}

// Every kernel is reached through the interface; what they compute is tested kernel by kernel.
TEST(CpuBackend, RunsAStatisticsPassThroughTheInterface) {
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  stream->wait(*stream->record());
  const Tensor x = backend->make_tensor(DType::kBF16, {5}, "x");
  backend->fill(x, 3.0f, *stream);
  const Tensor record = backend->make_stats(*stream);
  backend->tensor_stats({.x = x, .record = record}, *stream);
  stream->synchronize();
  EXPECT_EQ(backend->read_stats(record, *stream).sum_squares, 45.0);
}

}  // namespace
}  // namespace mantissa
