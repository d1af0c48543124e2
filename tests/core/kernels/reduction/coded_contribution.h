// Gradients to be rounded as they are sent: values, random words and rows of codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace coded_contribution_test {

using reference::random_values;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

// Values at which formats and scales change, then random values.
inline std::vector<float> awkward_values(int64_t n) {
  std::vector<float> values;
  for (const double v : random_values(n, 7)) values.push_back(static_cast<float>(v));
  const auto at = [&](int64_t block) { return values.begin() + 32 * block; };
  std::fill_n(at(0), 32, 0.0f);
  std::fill_n(at(1), 32, -0.0f);
  for (int i = 0; i < 32; ++i) at(2)[i] = std::ldexp(448.0f, -i);               // every binade of the formats
  for (int i = 0; i < 32; ++i) at(3)[i] = std::ldexp(at(3)[i], -140);           // subnormal in fp32
  for (int i = 0; i < 32; ++i) at(4)[i] = std::ldexp(at(4)[i], -120);           // with them in a block
  for (int i = 0; i < 32; ++i) at(5)[i] = 0x1p127f * (i % 2 == 0 ? 1 : -1.5f);  // near the largest
  for (int i = 0; i < 32; ++i) at(6)[i] = 17.0f + static_cast<float>(i);        // ties
  at(7)[3] = kNaN, at(7)[4] = -1e-3f;
  at(8)[5] = kInf, at(8)[6] = -kInf;
  std::fill_n(at(9), 32, kNaN);
  std::fill_n(at(10), 32, -kInf);
  for (int i = 0; i < 32; ++i) at(11)[i] = i == 31 ? 57344.0f : 1e-3f;  // a large value among small values
  at(12)[0] = std::numeric_limits<float>::denorm_min();
  for (int i = 1; i < 32; ++i) at(12)[i] = 0.0f;
  return values;
}

struct Sent {
  int64_t numel = 20000 / 32 * 32;
  int64_t first = 64, row_numel = 8192;

  Tensor rows(DType wire) const {
    return make_unwritten(wire, {divide_up(first + numel, row_numel), coded_row_bytes(row_numel)});
  }
  uint8_t code(const std::vector<std::byte>& bytes, int64_t i) const {
    return static_cast<uint8_t>(bytes[static_cast<size_t>(row(i) + (first + i) % row_numel)]);
  }
  uint8_t scale(const std::vector<std::byte>& bytes, int64_t i) const {
    return static_cast<uint8_t>(bytes[static_cast<size_t>(row(i) + row_numel + (first + i) % row_numel / 32)]);
  }
  int64_t row(int64_t i) const { return (first + i) / row_numel * coded_row_bytes(row_numel); }
};

constexpr uint64_t kKey = 0x123456789abcdefu;
constexpr uint32_t kParameter = 5, kStep = 3;

inline uint32_t word_of(int64_t i) {
  return philox(kKey, {static_cast<uint32_t>(i / 4), 0, kParameter, kStep})[static_cast<size_t>(i % 4)];
}

inline RoundContributionArgs rounding_of(DType wire, const Tensor& src, const Tensor& dst, bool stochastic) {
  return {.src = src,
          .dst = dst,
          .wire = wire,
          .scale = 2.0f,
          .step = stochastic ? make_indices({kStep}) : Tensor(),
          .key = kKey,
          .parameter = kParameter};
}

}  // namespace coded_contribution_test
}  // namespace mantissa::kernel_test
