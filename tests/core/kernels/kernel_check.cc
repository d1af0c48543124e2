#include "tests/core/kernels/kernel_check.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mantissa::kernel_test {

void expect_same_bits_on_every_schedule(const std::function<std::vector<Tensor>()>& run) {
  device_under_test().on_each_variant([&] {
    std::vector<std::vector<std::byte>> expected;
    device_under_test().on_each_schedule([&] {
      std::vector<std::vector<std::byte>> actual;
      for (const Tensor& output : run()) actual.push_back(bytes_of(output));
      if (expected.empty()) expected = actual;
      ASSERT_FALSE(actual.empty());
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i] == expected[i]) << "output " << i << " differs";
    });
  });
}

void expect_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& magnitude,
                  double steps, const std::string& what, const std::vector<double>& extra) {
  const std::vector<double> values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  ASSERT_EQ(values.size(), magnitude.size()) << what;
  ASSERT_TRUE(extra.empty() || extra.size() == values.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed =
        allowed_error(actual.dtype(), expected[i], steps, magnitude[i], extra.empty() ? 0.0 : extra[i]);
    const double error = std::abs(values[i] - expected[i]);
    ASSERT_TRUE(error <= allowed) << what << " (" << name(actual.dtype()) << "), element " << i << ": expected "
                                  << expected[i] << ", got " << values[i] << ", error " << error << " > " << allowed;
  }
}

void expect_contract_error(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "expected an error with: " << text;
  } catch (const ContractError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

std::vector<double> sum_of(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace mantissa::kernel_test
