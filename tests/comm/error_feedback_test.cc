// Error feedback: residuals of rounded gradients, by lane.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "tests/comm/node_ranks.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

using testing::GradientFunction;
using testing::toy_gradient;
using testing::TrainingRank;

using Elements = std::map<std::pair<int, int64_t>, uint32_t>;  // bits, by parameter and element

struct FeedbackStep {
  int gradients = 0;
  float loss = 1.0f;  // not finite: the update is not applied
  float unit = 1.0f;  // of the gradients
  int repeated = 0;   // earlier reductions of the step, which do not count
};

struct FedBack {
  std::vector<Elements> sums;                                    // of each step, divided by its unit
  std::map<std::tuple<int, int64_t, int64_t>, float> residuals;  // by parameter, lane and element, at the end
};

FedBack feed_back(const std::vector<int>& stages, int lanes, const ReducerConfig& config,
                  const std::vector<FeedbackStep>& steps, bool shares_memory = false) {
  const int ranks = std::accumulate(stages.begin(), stages.end(), 1, std::multiplies<>());
  FedBack found;
  found.sums.resize(steps.size());
  std::mutex mutex;
  run_ranks(ranks, [&](Communicator& local) {
    std::optional<testing::NodeCommunicator> node;
    if (shares_memory) node.emplace(local);
    const ExchangeGroups groups(node ? *node : local, stages);
    TrainingRank rank(groups, config, DType::kBF16, testing::kToyCapacityBytes, {}, lanes);
    VerdictReduction verdicts(groups, *rank.backend, *rank.stream);
    for (size_t index = 0; index < steps.size(); ++index) {
      const FeedbackStep& step = steps[index];
      const GradientFunction gradient = [&](int lane, int p, int64_t i) {
        return step.unit * toy_gradient(lane + 100 * step.gradients, p, i);
      };
      rank.unit.data<float>()[0] = step.unit;
      for (int again = 0; again < step.repeated; ++again) rank.reduce(gradient);
      *rank.step_number.data<int32_t>() = step.gradients;
      rank.reduce(gradient);
      EXPECT_EQ(rank.verdict_of(verdicts, step.loss).loss_finite, std::isfinite(step.loss));
      verdicts.release_hold();
      const std::lock_guard lock(mutex);
      rank.for_each_result([&](int p, int64_t i, float value) {
        found.sums[index][{p, i}] = std::bit_cast<uint32_t>(value / step.unit);
      });
    }
    const std::lock_guard lock(mutex);
    for (const LaneResidual& residual : rank.reducer->residuals()) {
      for (int64_t i = 0; i < residual.values.numel(); ++i) {
        found.residuals[{residual.parameter->index, residual.lane, i}] = residual.values.data<float>()[i];
      }
    }
  });
  return found;
}

constexpr DType kRoundedWires[] = {DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2};

TEST(ErrorFeedback, GivesTheSameBitsByEveryExchange) {
  const std::vector<FeedbackStep> steps = {{.gradients = 1}, {.gradients = 2}, {.gradients = 3}};
  for (const DType wire : kRoundedWires) {
    for (const SenderRounding rounding : {SenderRounding::kNearest, SenderRounding::kStochastic}) {
      ReducerConfig config{.wire = wire, .rounding = rounding, .seed = 7, .error_feedback = true};
      const FedBack expected = feed_back({1}, 4, config, steps);
      EXPECT_EQ(expected.residuals.size(), 4u * 19'261u);
      for (const bool shares_memory : {false, true}) {
        for (const std::vector<int>& stages : {std::vector{3}, std::vector{4}, std::vector{2, 2}}) {
          for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
            config.sharding = sharding;
            const FedBack found = feed_back(stages, 4, config, steps, shares_memory);
            EXPECT_TRUE(found.sums == expected.sums) << name(wire);
            EXPECT_TRUE(found.residuals == expected.residuals) << name(wire);
          }
        }
      }
      config.error_feedback = false;
      const FedBack without = feed_back({1}, 4, config, steps);
      EXPECT_TRUE(without.sums[0] == expected.sums[0]) << "residuals start as zeros";
      EXPECT_FALSE(without.sums[1] == expected.sums[1]);
      EXPECT_TRUE(without.residuals.empty());
    }
  }
}

// Residuals change neither in a step without an update, nor by dropped reductions or another power of two as loss
// scale.
TEST(ErrorFeedback, CountsAppliedStepsAlone) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const DType wire : kRoundedWires) {
    const ReducerConfig config{.wire = wire, .error_feedback = true};
    for (const int ranks : {1, 2, 4}) {
      const FedBack plain = feed_back({ranks}, 4, config, {{.gradients = 1}, {.gradients = 2}, {.gradients = 3}});
      const FedBack found = feed_back({ranks}, 4, config,
                                      {{.gradients = 9, .loss = kNaN},
                                       {.gradients = 1, .repeated = 2},
                                       {.gradients = 8, .loss = kNaN, .repeated = 1},
                                       {.gradients = 7, .loss = kNaN},
                                       {.gradients = 2, .unit = 0.25f},
                                       {.gradients = 3, .unit = 16.0f, .repeated = 1}});
      EXPECT_TRUE(found.sums[1] == plain.sums[0]) << name(wire);
      EXPECT_TRUE(found.sums[4] == plain.sums[1]) << name(wire);
      EXPECT_TRUE(found.sums[5] == plain.sums[2]) << name(wire);
      EXPECT_TRUE(found.residuals == plain.residuals) << name(wire);
    }
  }
}

// The steps' sums and the last residuals together are the sum of all gradients.
TEST(ErrorFeedback, LosesNothingOverManySteps) {
  constexpr int kSteps = 20, kLanes = 4;
  std::vector<FeedbackStep> steps(kSteps);  // the same gradients each time: without feedback, the same errors
  for (const DType wire : {DType::kBF16, DType::kE4M3, DType::kE5M2}) {
    double squares[2] = {};
    for (const bool feeds_back : {false, true}) {
      const FedBack found = feed_back({2}, kLanes, {.wire = wire, .error_feedback = feeds_back}, steps);
      std::map<std::pair<int, int64_t>, double> lacking;
      for (const Elements& sums : found.sums) {
        for (const auto& [place, bits] : sums) lacking[place] -= static_cast<double>(std::bit_cast<float>(bits));
      }
      for (auto& [place, value] : lacking) {
        double scale = 0.0, left = 0.0;
        for (int lane = 0; lane < kLanes; ++lane) {
          const auto gradient = static_cast<double>(toy_gradient(lane, place.first, place.second));
          value += kSteps * gradient;
          scale += std::abs(gradient);
          if (feeds_back) {
            left += static_cast<double>(found.residuals.at({place.first, lane, place.second}));
          }
        }
        if (feeds_back) {
          ASSERT_NEAR(value, left, 0x1p-22 * kSteps * scale);  // a few roundings to fp32 a step
        }
        squares[feeds_back] += std::pow(value / kSteps, 2);
      }
    }
    EXPECT_LT(std::sqrt(squares[1] / squares[0]), 3.0 / kSteps) << name(wire);
  }
}

TEST(ErrorFeedback, KeepsNoResidualWhereNothingIsRounded) {
  run_ranks(1, [](Communicator& communicator) {
    for (const auto& [wire, lanes] : {std::pair{DType::kF32, 4}, {DType::kBF16, 1}}) {
      TrainingRank rank(communicator, {.wire = wire, .error_feedback = true}, DType::kBF16, testing::kToyCapacityBytes,
                        {}, lanes);
      rank.reduce();
      EXPECT_TRUE(rank.reducer->residuals().empty());
      EXPECT_FALSE(rank.reducer->applied().defined());
    }
    TrainingRank rank(communicator, {.error_feedback = true}, DType::kBF16, testing::kToyCapacityBytes, {}, 2);
    EXPECT_THROW(rank.reducer->begin(), ContractError);
  });
}

}  // namespace
}  // namespace mantissa
