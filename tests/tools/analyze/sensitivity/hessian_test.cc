// Traces by Hutchinson's probes against the whole diagonal, element by element, of a model of two thousand parameters.
#include "tools/analyze/sensitivity/hessian.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "comm/local/local_communicator.h"
#include "tests/tools/train/program.h"
#include "tools/analyze/sensitivity/decisions.h"
#include "tools/train/train_step.h"

namespace mantissa::testing {
namespace {

constexpr int kProbes = 4096;

Config tiny_config(const SmallRun& run) {
  return in_exact_precision(load_config(
      run.config_path(), {"train.steps=200", "model.layers=1", "model.width=8", "model.heads=2", "model.context=8",
                          "model.vocab=128", "train.global_batch=4", "train.micro_batch=2"}));
}

struct Found {
  HessianProbes probes;
  std::vector<std::vector<double>> dense;
  std::vector<std::string> names;
};

Found find(const Config& config, Communicator& communicator, int probes, bool dense) {
  Session session(config, communicator);
  TrainStep step(session);
  for (int i = 0; i < 40; ++i) step.run();  // of first weights the trace is next to nothing
  LoweredPasses passes(session);
  passes.load(0);
  const std::vector<double> steps = hessian_steps(session);
  Found found;
  probe_hessian(passes, steps, 0, probes, found.probes);
  if (dense) found.dense = dense_diagonal(passes, steps);
  for (int i = 0; i < session.runtime.parameters.size(); ++i) found.names.push_back(session.runtime.parameters[i].name);
  return found;
}

double standard_error(const std::vector<double>& values, double mean) {
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1.0) / n);
}

TEST(Hessian, TracesAgreeWithTheDenseDiagonal) {
  const SmallRun run("hessian");
  LocalGroup group(1);
  const Found found = find(tiny_config(run), group.rank(0), kProbes, true);
  std::vector<double> all(kProbes);
  double dense_of_all = 0.0, largest = 0.0;
  for (size_t parameter = 0; parameter < found.names.size(); ++parameter) {
    std::vector<double> traces;
    for (size_t probe = 0; probe < kProbes; ++probe) {
      traces.push_back(found.probes.traces[probe][parameter]);
      all[probe] += traces.back();
    }
    const double mean = std::accumulate(traces.begin(), traces.end(), 0.0) / kProbes;
    const double dense = std::accumulate(found.dense[parameter].begin(), found.dense[parameter].end(), 0.0);
    dense_of_all += dense;
    // Of some twenty parameters, four standard errors are exceeded by chance once in a thousand such tests.
    largest = std::max(largest, dense / standard_error(traces, mean));
    EXPECT_NEAR(mean, dense, 4.0 * standard_error(traces, mean)) << found.names[parameter];
  }
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / kProbes;
  EXPECT_NEAR(mean, dense_of_all, 4.0 * standard_error(all, mean));
  EXPECT_GT(largest, 20.0) << "else nothing was compared";
}

// The Hessian is linear in what is stepped along, so that the diagonal must not depend on the step.
TEST(Hessian, DoesNotDependOnTheStep) {
  const SmallRun run("hessian_step");
  LocalGroup group(1);
  const Config config = tiny_config(run);
  Session session(config, group.rank(0));
  LoweredPasses passes(session);
  passes.load(0);
  std::vector<double> steps = hessian_steps(session);
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
  EXPECT_EQ(both[0].probes.traces, both[1].probes.traces) << "all ranks know the same";
  for (size_t probe = 0; probe < 4; ++probe) {
    const auto& expected = alone.probes.traces[probe];
    const double size = std::accumulate(expected.begin(), expected.end(), 0.0,
                                        [](double sum, double trace) { return sum + std::abs(trace); });
    for (size_t i = 0; i < expected.size(); ++i) {
      // Sums of other orders, divided by the step.
      EXPECT_NEAR(both[0].probes.traces[probe][i], expected[i], 1e-3 * size) << alone.names[i];
    }
  }
}

}  // namespace
}  // namespace mantissa::testing
