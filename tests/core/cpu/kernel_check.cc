#include "tests/core/cpu/kernel_check.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "hwy/highway.h"
#include "tests/core/cpu/test_tensor.h"

namespace mantissa::cpu {

void on_each_target(const std::function<void()>& body) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
}

void expect_same_for_any_thread_count(const std::function<std::vector<Tensor>()>& run) {
  const int usual = omp_get_max_threads();
  on_each_target([&] {
    std::vector<std::vector<std::byte>> expected;
    for (const int threads : {1, 2, 3, 4}) {
      omp_set_num_threads(threads);
      const std::vector<Tensor> outputs = run();
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (threads == 1) {
          expected.push_back(bytes_of(outputs[i]));
        } else {
          EXPECT_TRUE(bytes_of(outputs[i]) == expected[i])
              << "output " << i << " differs with " << threads << " threads";
        }
      }
    }
    omp_set_num_threads(usual);
  });
}

void expect_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& magnitude,
                  double steps, const std::string& what) {
  const std::vector<double> values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  ASSERT_EQ(values.size(), magnitude.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed = allowed_error(actual.dtype(), expected[i], steps, magnitude[i]);
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

}  // namespace mantissa::cpu
