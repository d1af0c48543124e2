// Traces and diagonals by Hutchinson's probes, against the whole diagonal of a model of two thousand parameters,
// element by element.
#include "tools/lab/analyze/sensitivity/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <thread>

#include "comm/local/local_communicator.h"
#include "core/tensor/philox.h"
#include "tests/program/program.h"
#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

constexpr int kProbes = 4096, kGroups = 64;

Config tiny_config(const SmallRun& run) {
  return in_exact_precision(load_config(
      run.config_path(), {"train.steps=200", "model.layers=1", "model.width=8", "model.heads=2", "model.context=8",
                          "model.vocab=128", "train.global_batch=4", "train.micro_batch=2"}));
}

struct Found {
  HessianProbes probes;
  std::vector<std::pair<double, double>> ranges;
  // By parameter, for this rank's elements: the estimate and its standard error.
  std::vector<std::vector<double>> diagonal, errors;
  std::vector<std::vector<double>> dense;
  std::vector<std::pair<double, double>> dense_ranges;
  std::vector<std::string> names;
};
using Parts = std::vector<std::vector<double>>;

// Means and standard errors from running sums over groups of probes, by the spread of the groups.
void find_elements(const std::vector<Parts>& sums, int probes, const Shard& shard, Found& found) {
  const auto groups = static_cast<double>(sums.size());
  for (size_t part = 0; part < shard.size(); ++part) {
    const auto parameter = static_cast<size_t>(shard[part].parameter);
    for (size_t i = 0; i < sums[0][part].size(); ++i) {
      const double mean = sums.back()[part][i] / groups;  // of a group's contribution
      double squares = 0.0, before = 0.0;
      for (const Parts& sum : sums) {
        squares += (sum[part][i] - before - mean) * (sum[part][i] - before - mean);
        before = sum[part][i];
      }
      found.diagonal[parameter].push_back(sums.back()[part][i] / probes);
      found.errors[parameter].push_back(std::sqrt(squares / (groups - 1.0) / groups) * groups / probes);
    }
  }
}

// H_ii by steps along one element at a time, two passes each. By parameter, on all ranks. Collective.
Parts dense_diagonal(LoweredPasses& passes, const std::vector<double>& steps) {
  const ShardedState& state = passes.state();
  Parts diagonal;
  for (size_t index = 0; index < steps.size(); ++index) {
    std::vector<double> mine(static_cast<size_t>(state.parameters()[static_cast<int>(index)].numel()));
    for (size_t element = 0; element < mine.size(); ++element) {
      const auto place_in = [&](int parameter, int64_t begin, int64_t count) -> int64_t {
        const int64_t place = static_cast<int64_t>(element) - begin;
        return static_cast<size_t>(parameter) == index && place >= 0 && place < count ? place : -1;
      };
      const auto products = hessian_product(passes, [&](int parameter, int64_t begin, std::span<float> out) {
        std::fill(out.begin(), out.end(), 0.0f);
        const int64_t place = place_in(parameter, begin, static_cast<int64_t>(out.size()));
        if (place >= 0) out[static_cast<size_t>(place)] = static_cast<float>(steps[index]);
      });
      const Shard shard = gradient_shard(state);
      for (size_t part = 0; part < shard.size(); ++part) {
        const int64_t place = place_in(shard[part].parameter, shard[part].begin, shard[part].values.numel());
        if (place >= 0) mine[element] = static_cast<double>(products[part][static_cast<size_t>(place)]) / steps[index];
      }
    }
    diagonal.push_back(sum_over_ranks(mine, state.communicator));
  }
  passes.point().restore();
  return diagonal;
}

Found find(const Config& config, Communicator& communicator, int probes, bool dense) {
  Session session(config, communicator);
  TrainStep step(session);
  for (int i = 0; i < 40; ++i) step.run();  // with initial weights the trace is almost 0
  LoweredPasses passes(session);
  passes.load(0);
  const std::vector<double> steps = hessian_steps(session.sharded);
  Found found;
  found.diagonal.resize(steps.size());
  found.errors.resize(steps.size());
  std::vector<Parts> sums;
  const int of_group = std::max(1, probes / kGroups);
  for (int begin = 0; begin < probes; begin += of_group) {
    probe_hessian(passes, steps, begin, begin + of_group, found.probes);
    sums.push_back(found.probes.diagonal);
  }
  const Shard shard = gradient_shard(session.sharded);
  found.ranges = diagonal_range(found.probes, shard, session.sharded);
  find_elements(sums, probes, shard, found);
  for (int i = 0; i < session.runtime.parameters.size(); ++i) found.names.push_back(session.runtime.parameters[i].name);
  if (!dense) return found;
  found.dense = dense_diagonal(passes, steps);
  HessianProbes exact{.traces = Parts(2), .diagonal = {}};  // stands for two exact probes
  for (const ShardPart& part : shard) {
    std::vector<double>& sum = exact.diagonal.emplace_back();
    for (int64_t i = part.begin; i < part.begin + part.values.numel(); ++i) {
      sum.push_back(2.0 * found.dense[static_cast<size_t>(part.parameter)][static_cast<size_t>(i)]);
    }
  }
  found.dense_ranges = diagonal_range(exact, shard, session.sharded);
  return found;
}

double standard_error(const std::vector<double>& values, double mean) {
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1.0) / n);
}

// Probes in their order until a look finds the interval narrow enough, as the analysis makes them.
Estimate estimate_by(const HessianGoal& goal, double level, std::span<const double> probes) {
  Estimate found;
  for (const int64_t look : goal.looks()) {
    found = estimate(probes.first(static_cast<size_t>(look)), level);
    if (goal.is_met(found)) break;
  }
  return found;
}

bool misses(const Estimate& found, double truth) { return std::abs(found.mean - truth) > found.half_width; }

TEST(HessianGoal, LooksTwiceAsLateEachTimeAndSharesTheError) {
  const HessianGoal goal{.share = 0.5, .first = 8, .most = 100};
  EXPECT_EQ(goal.looks(), (std::vector<int64_t>{8, 16, 32, 64, 100}));
  EXPECT_DOUBLE_EQ(goal.level(), 0.99);
  EXPECT_TRUE(goal.is_met({.mean = -2.0, .half_width = 1.0}));
  EXPECT_FALSE(goal.is_met({.mean = -2.0, .half_width = 1.01}));
  EXPECT_FALSE(goal.is_met({.mean = 2.0}));
  EXPECT_TRUE(goal.is_met({}));
  const HessianGoal fixed{.first = 8, .most = 100};
  EXPECT_EQ(fixed.looks(), std::vector<int64_t>{8});
  EXPECT_DOUBLE_EQ(fixed.level(), 0.95);
  EXPECT_TRUE(HessianGoal{}.looks().empty());
}

// Against known means. Intervals of 95 % at each look would miss them too often.
TEST(HessianGoal, IntervalsMissTheMeanInAtMostATwentiethOfCases) {
  constexpr uint32_t kTrials = 1500;
  const HessianGoal goal{.share = 0.5, .first = 8, .most = 64};
  double worst_of_single_looks = 0.0;
  for (const double mean : {0.4, 0.6}) {
    int missed = 0, missed_by_single_looks = 0;
    for (uint32_t trial = 0; trial < kTrials; ++trial) {
      std::vector<double> probes;
      for (uint32_t i = 0; i < 32; ++i) {
        const PhiloxCounter words = philox(21, {i, trial, 0, 0});
        const auto [a, b] = normal_pair(words[0], words[1]);
        probes.insert(probes.end(), {mean + a, mean + b});
      }
      missed += misses(estimate_by(goal, goal.level(), probes), mean);
      missed_by_single_looks += misses(estimate_by(goal, 0.95, probes), mean);
    }
    EXPECT_LE(missed, 0.05 * kTrials) << mean;
    worst_of_single_looks = std::max(worst_of_single_looks, missed_by_single_looks / static_cast<double>(kTrials));
  }
  EXPECT_GT(worst_of_single_looks, 0.06) << "looks need not share the error";
}

TEST(Hessian, TracesElementsAndRangesAgreeWithTheDenseDiagonal) {
  const SmallRun run("hessian");
  LocalGroup group(1);
  const Found found = find(tiny_config(run), group.rank(0), kProbes, true);
  std::vector<double> all(kProbes);
  double dense_of_all = 0.0, largest = 0.0, clearest = 0.0;
  const HessianGoal goal{.share = 0.5, .first = 8, .most = 256};
  int repetitions = 0, missed = 0, known = 0;
  for (size_t parameter = 0; parameter < found.names.size(); ++parameter) {
    std::vector<double> traces;
    for (size_t probe = 0; probe < kProbes; ++probe) {
      traces.push_back(found.probes.traces[probe][parameter]);
      all[probe] += traces.back();
    }
    const double mean = std::accumulate(traces.begin(), traces.end(), 0.0) / kProbes;
    const double dense = std::accumulate(found.dense[parameter].begin(), found.dense[parameter].end(), 0.0);
    dense_of_all += dense;
    // Over about twenty parameters, chance exceeds four standard errors in one of a thousand such tests.
    largest = std::max(largest, dense / standard_error(traces, mean));
    EXPECT_NEAR(mean, dense, 4.0 * standard_error(traces, mean)) << found.names[parameter];
    for (size_t begin = 0; begin < traces.size(); begin += static_cast<size_t>(goal.most), ++repetitions) {
      const auto part = std::span<const double>(traces).subspan(begin, static_cast<size_t>(goal.most));
      const Estimate until_known = estimate_by(goal, goal.level(), part);
      missed += misses(until_known, dense);
      known += goal.is_met(until_known);
    }
    const std::vector<double>&elements = found.diagonal[parameter], &errors = found.errors[parameter];
    ASSERT_EQ(elements.size(), found.dense[parameter].size());
    const auto [low, high] = std::minmax_element(found.dense[parameter].begin(), found.dense[parameter].end());
    // The loss does not depend on the keys' biases, so their gradients are fp32 rounding errors.
    const double rounding = 0x1p-20 * std::max(std::abs(*low), std::abs(*high));
    for (size_t i = 0; i < elements.size(); ++i) {
      // In 1 % of such tests, one of two thousand elements exceeds five standard errors of 64 groups.
      const double error = 5.0 * errors[i] + rounding;
      EXPECT_NEAR(elements[i], found.dense[parameter][i], error) << found.names[parameter] << " " << i;
      if (error > 0.0) clearest = std::max(clearest, std::abs(found.dense[parameter][i]) / error);
    }
    EXPECT_EQ(found.dense_ranges[parameter], std::make_pair(*low, *high)) << found.names[parameter];
    const auto ends = std::minmax_element(elements.begin(), elements.end());
    EXPECT_EQ(found.ranges[parameter], std::make_pair(*ends.first, *ends.second)) << found.names[parameter];
  }
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / kProbes;
  EXPECT_NEAR(mean, dense_of_all, 4.0 * standard_error(all, mean));
  // Parameters share probes, so that misses come together.
  EXPECT_LE(missed, 0.05 * repetitions);
  EXPECT_GT(known, 0.3 * repetitions) << "few probes were enough for no trace";
  EXPECT_LT(known, repetitions);
  EXPECT_GT(largest, 20.0) << "nothing was compared";
  EXPECT_GT(clearest, 4.0) << "no elements were compared";
}

// The Hessian is linear in the step, so the diagonal must not depend on it.
TEST(Hessian, DoesNotDependOnTheStep) {
  const SmallRun run("hessian_step");
  LocalGroup group(1);
  const Config config = tiny_config(run);
  Session session(config, group.rank(0));
  LoweredPasses passes(session);
  passes.load(0);
  std::vector<double> steps = hessian_steps(session.sharded);
  HessianProbes whole, half;
  probe_hessian(passes, steps, 0, 4, whole);
  for (double& step : steps) step /= 2.0;
  probe_hessian(passes, steps, 0, 4, half);
  for (size_t probe = 0; probe < 4; ++probe) {
    const auto sum = [&](const HessianProbes& probes) {
      return std::accumulate(probes.traces[probe].begin(), probes.traces[probe].end(), 0.0);
    };
    EXPECT_NEAR(sum(half), sum(whole), 0.002 * std::abs(sum(whole))) << probe;
  }
}

TEST(Hessian, IsTheSameOnTwoRanks) {
  const SmallRun run("hessian_ranks");
  const Config config = tiny_config(run);
  LocalGroup one(1), two(2);
  const Found alone = find(config, one.rank(0), 4, false);
  std::vector<Found> both(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] { both[static_cast<size_t>(rank)] = find(config, two.rank(rank), 4, false); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(both[0].probes.traces, both[1].probes.traces) << "all ranks have the same traces";
  EXPECT_EQ(both[0].ranges, both[1].ranges);
  for (size_t i = 0; i < alone.ranges.size(); ++i) {
    const auto [low, high] = alone.ranges[i];
    const double size = std::max(std::abs(low), std::abs(high));
    EXPECT_NEAR(both[0].ranges[i].first, low, 0.01 * size) << alone.names[i];
    EXPECT_NEAR(both[0].ranges[i].second, high, 0.01 * size) << alone.names[i];
  }
  for (size_t probe = 0; probe < 4; ++probe) {
    const auto& expected = alone.probes.traces[probe];
    const double size = std::accumulate(expected.begin(), expected.end(), 0.0,
                                        [](double sum, double trace) { return sum + std::abs(trace); });
    for (size_t i = 0; i < expected.size(); ++i) {
      // Sums in another order, divided by the step.
      EXPECT_NEAR(both[0].probes.traces[probe][i], expected[i], 1e-3 * size) << alone.names[i];
    }
  }
}

// For any rank that has the NaN, and any position.
TEST(Hessian, RangesWithoutANumberAreNotKnown) {
  const SmallRun run("hessian_nan");
  const Config config = tiny_config(run);
  LocalGroup group(2);
  for (const int nan_rank : {0, 1}) {
    std::vector<std::vector<std::pair<double, double>>> found(2);
    int nan_parameter = -1;
    const auto find_ranges = [&](int rank) {
      Session session(config, group.rank(rank));
      const Shard shard = master_shard(session.sharded);
      HessianProbes made{.traces = Parts(1), .diagonal = {}};
      for (const ShardPart& part : shard) {
        std::vector<double>& diagonal = made.diagonal.emplace_back(static_cast<size_t>(part.values.numel()));
        std::iota(diagonal.begin(), diagonal.end(), static_cast<double>(part.begin));
      }
      if (rank == nan_rank) {
        made.diagonal[0][made.diagonal[0].size() / 2] = NAN;
        nan_parameter = shard[0].parameter;
      }
      found[static_cast<size_t>(rank)] = diagonal_range(made, shard, session.sharded);
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) threads.emplace_back(find_ranges, rank);
    for (std::thread& thread : threads) thread.join();
    for (const auto& ranges : found) {
      for (size_t i = 0; i < ranges.size(); ++i) {
        const bool is_known = static_cast<int>(i) != nan_parameter;
        EXPECT_EQ(std::isnan(ranges[i].first), !is_known) << i;
        EXPECT_EQ(std::isnan(ranges[i].second), !is_known) << i;
        if (is_known) {
          EXPECT_EQ(ranges[i].first, 0.0) << i;
        }
      }
    }
  }
}

// A common factor in all gradients would go unnoticed above. Losses do not depend on it.
TEST(Hessian, IsTheSecondDerivativeOfTheLoss) {
  const SmallRun run("hessian_of_losses");
  const Config config = tiny_config(run);
  LocalGroup group(1);
  Session session(config, group.rank(0));
  TrainStep step(session);
  for (int i = 0; i < 40; ++i) step.run();
  LoweredPasses passes(session);
  passes.load(0);
  const auto diagonal = dense_diagonal(passes, hessian_steps(session.sharded));
  struct Place {
    size_t parameter = 0, element = 0;
  } largest;
  for (size_t p = 0; p < diagonal.size(); ++p) {
    for (size_t i = 0; i < diagonal[p].size(); ++i) {
      if (diagonal[p][i] > diagonal[largest.parameter][largest.element]) largest = {p, i};
    }
  }
  const double expected = diagonal[largest.parameter][largest.element];
  const double distance = 0.1 / std::sqrt(expected);  // the loss rises by a 200th along this distance
  const auto loss_at = [&](double x) {
    passes.point().displace([&](int parameter, int64_t begin, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.0f);
      const int64_t place = static_cast<int64_t>(largest.element) - begin;
      const bool is_here = static_cast<size_t>(parameter) == largest.parameter && place >= 0;
      if (is_here && place < static_cast<int64_t>(out.size())) out[static_cast<size_t>(place)] = static_cast<float>(x);
    });
    return passes.loss(nullptr);
  };
  const double second = (loss_at(distance) - 2.0 * loss_at(0.0) + loss_at(-distance)) / (distance * distance);
  EXPECT_NEAR(second, expected, 0.05 * expected);
}

}  // namespace
}  // namespace mantissa::testing
