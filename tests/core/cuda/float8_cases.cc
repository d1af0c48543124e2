// 8-bit floats in kernels equal those of core/tensor/format.h: every code, and values around every boundary.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/backend/registry.h"
#include "tests/core/cuda/float8_kernels.h"

namespace mantissa::cuda {
namespace {

class Float8InKernels : public ::testing::TestWithParam<Format> {
 protected:
  std::vector<float> widened(const std::vector<uint8_t>& codes) {
    const auto count = static_cast<int64_t>(codes.size());
    const Tensor from = backend_->make_tensor(DType::kU8, {count}, "test"), to = floats(count);
    backend_->upload(codes.data(), from, *stream_);
    widen_codes(GetParam(), reinterpret_cast<const uint8_t*>(from.raw()), to.data<float>(), count, as_cuda(*stream_));
    std::vector<float> values(codes.size());
    backend_->download(to, values.data(), *stream_);
    return values;
  }
  std::vector<uint8_t> narrowed(const std::vector<float>& values, Saturation saturation) {
    const auto count = static_cast<int64_t>(values.size());
    const Tensor from = floats(count), to = backend_->make_tensor(DType::kU8, {count}, "test");
    backend_->upload(values.data(), from, *stream_);
    narrow_values(GetParam(), saturation, from.data<float>(), reinterpret_cast<uint8_t*>(to.raw()), count,
                  as_cuda(*stream_));
    std::vector<uint8_t> codes(values.size());
    backend_->download(to, codes.data(), *stream_);
    return codes;
  }

 private:
  Tensor floats(int64_t count) { return backend_->make_tensor(DType::kF32, {count}, "test"); }

  const std::unique_ptr<Backend> backend_ = create_backend("cuda");
  const std::unique_ptr<Stream> stream_ = backend_->create_stream();
};

TEST_P(Float8InKernels, EveryCodeHasItsValue) {
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<uint8_t>(code));
  const std::vector<float> values = widened(codes);
  for (int code = 0; code < 256; ++code) {
    const float expected = decode(GetParam(), static_cast<uint32_t>(code)), found = values[static_cast<size_t>(code)];
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << code;
    } else {
      EXPECT_EQ(found, expected) << code;
      EXPECT_EQ(std::signbit(found), std::signbit(expected)) << code;
    }
  }
}

// Each value, half-way to the next, and the fp32 neighbours of both; also beyond the range.
std::vector<float> boundaries(Format format) {
  const auto max = static_cast<float>(info(format).max);
  std::vector<float> points = {
      0.0f, max * 1.0625f, max * 1.125f, max * 2, 1e30f, 1e-30f, std::numeric_limits<float>::infinity()};
  for (uint32_t code = 0; code < 127; ++code) {
    const float value = decode(format, code), next = decode(format, code + 1);
    if (!std::isfinite(value) || !std::isfinite(next)) break;
    points.push_back(value);
    points.push_back(value + (next - value) / 2);
  }
  std::vector<float> values;
  for (const float point : points) {
    for (const float value : {std::nextafter(point, 0.0f), point, std::nextafter(point, HUGE_VALF)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  return values;
}

TEST_P(Float8InKernels, ValuesAreRoundedAsOnTheHost) {
  const std::vector<float> values = boundaries(GetParam());
  for (const Saturation saturation : {Saturation::kNo, Saturation::kYes}) {
    const std::vector<uint8_t> codes = narrowed(values, saturation);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t expected = encode(GetParam(), values[i], saturation);
      if (std::isnan(decode(GetParam(), expected))) {
        EXPECT_TRUE(std::isnan(decode(GetParam(), codes[i]))) << values[i];
      } else {
        EXPECT_EQ(codes[i], expected) << values[i];
      }
    }
  }
}

TEST_P(Float8InKernels, NanStaysNan) {
  for (const Saturation saturation : {Saturation::kNo, Saturation::kYes}) {
    for (const uint8_t code : narrowed({std::numeric_limits<float>::quiet_NaN()}, saturation)) {
      EXPECT_TRUE(std::isnan(decode(GetParam(), code)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float8InKernels, ::testing::Values(Format::kE4M3, Format::kE5M2),
                         [](const auto& info) { return std::string(mantissa::info(info.param).name); });

}  // namespace
}  // namespace mantissa::cuda
