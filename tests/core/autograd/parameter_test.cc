// ParameterSet, and initial values that depend only on (seed, name, element).
#include "core/autograd/parameter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mantissa {
namespace {

std::vector<float> initial(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), NAN);
  initial_values(parameter, seed, begin, count, values.data());
  return values;
}

Parameter normal(const std::string& name, int64_t count, float stddev) {
  Parameter parameter;
  parameter.name = name;
  parameter.shape = Shape{count};
  parameter.init = {Init::Kind::kNormal, stddev};
  return parameter;
}

TEST(ParameterSet, KeepsOrderAndAddresses) {
  ParameterSet set;
  std::vector<Parameter*> added;
  for (int i = 0; i < 100; ++i) added.push_back(&set.add("p" + std::to_string(i), {i + 1, 2}, {}));
  ASSERT_EQ(set.size(), 100);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(&set[i], added[static_cast<size_t>(i)]);
    EXPECT_EQ(set[i].index, i);
    EXPECT_EQ(set.find("p" + std::to_string(i)), &set[i]);
  }
  EXPECT_EQ(set.numel(), 2 * 100 * 101 / 2);
  EXPECT_EQ(set.find("p100"), nullptr);
}

TEST(ParameterSet, RefusesANameTwice) {
  ParameterSet set;
  set.add("blocks.0.mlp.up.weight", {2, 2}, {});
  EXPECT_THROW(set.add("blocks.0.mlp.up.weight", {2, 2}, {}), ContractError);
}

TEST(ParameterSet, DecaysMatricesOnly) {
  ParameterSet set;
  EXPECT_EQ(set.add("matrix", {2, 2}, {}).decay, WeightDecay::kYes);
  EXPECT_EQ(set.add("vector", {2}, {}).decay, WeightDecay::kNo);
}

TEST(Parameter, LayerIsTheNameWithoutItsRole) {
  Parameter parameter;
  parameter.name = "blocks.3.mlp.up.weight";
  EXPECT_EQ(parameter.layer(), "blocks.3.mlp.up");
  EXPECT_EQ(parameter.precision_layer(), "blocks.3.mlp.up");
  parameter.consumer = "head";
  EXPECT_EQ(parameter.precision_layer(), "head");
}

TEST(InitialValues, ConstantKinds) {
  Parameter parameter;
  parameter.shape = Shape{5};
  EXPECT_EQ(initial(parameter, 1, 0, 5), std::vector<float>(5, 0.0f));
  parameter.init = {Init::Kind::kOnes};
  EXPECT_EQ(initial(parameter, 1, 1, 3), std::vector<float>(3, 1.0f));
}

// A shard draws the same values as its part of the whole, so any number of ranks starts alike.
TEST(InitialValues, AnyPartEqualsThatPartOfTheWhole) {
  const Parameter parameter = normal("blocks.0.mlp.up.weight", 1003, 0.02f);
  const auto whole = initial(parameter, 7, 0, 1003);
  for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {1, 1}, {2, 5}, {3, 1000}, {4, 4}, {501, 502}, {1002, 1}, {1000, 3}, {17, 0}}) {
    const std::vector<float> expected(whole.begin() + begin, whole.begin() + begin + count);
    EXPECT_EQ(initial(parameter, 7, begin, count), expected) << begin << " + " << count;
  }
}

TEST(InitialValues, DependOnSeedAndName) {
  const Parameter a = normal("a", 64, 1.0f), b = normal("b", 64, 1.0f);
  EXPECT_NE(initial(a, 1, 0, 64), initial(b, 1, 0, 64));
  EXPECT_NE(initial(a, 1, 0, 64), initial(a, 2, 0, 64));
  EXPECT_EQ(initial(a, 1, 0, 64), initial(a, 1, 0, 64));
}

// Sample mean and standard deviation of n normal values have standard errors s / sqrt(n) and s / sqrt(2n). Five of them
// give one false alarm in two million, and the values are fixed anyway. The share beyond two deviations distinguishes a
// normal distribution from others: 4.55 %, standard error sqrt(0.0455 * 0.9545 / n).
TEST(InitialValues, AreNormal) {
  constexpr int64_t kCount = 100000;
  constexpr double kStddev = 0.02, kRoot = 316.2;
  const auto values = initial(normal("w", kCount, kStddev), 42, 0, kCount);
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / kCount;
  double squares = 0.0;
  for (const float value : values) squares += (value - mean) * (value - mean);
  const double beyond = static_cast<double>(
      std::count_if(values.begin(), values.end(), [](float value) { return std::abs(value) > 2 * kStddev; }));
  EXPECT_NEAR(mean, 0.0, 5 * kStddev / kRoot);
  EXPECT_NEAR(std::sqrt(squares / kCount), kStddev, 5 * kStddev / (std::sqrt(2.0) * kRoot));
  EXPECT_NEAR(beyond / kCount, 0.0455, 5 * 0.2084 / kRoot);
}

}  // namespace
}  // namespace mantissa
