// Trainings of several lanes on ranks as threads, and their results, which must be the same on any number of ranks.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/local/local_communicator.h"
#include "tests/comm/node_ranks.h"
#include "tests/program/program.h"
#include "tests/testing/weight_hash.h"
#include "tools/train/session_observers.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {

// Results on which the ranks agree.
struct TrainedLanes {
  std::vector<uint64_t> weights;                           // hash after each step
  std::vector<uint64_t> losses, norms, noise, curvatures;  // bits, since NaN is not equal to itself
  std::vector<float> scales;
  std::vector<bool> applied;
  double validation = 0.0;
  bool operator==(const TrainedLanes&) const = default;
};

struct RanksOf {
  int ranks = 1;
  bool shares_memory = false;
  Sharding sharding = Sharding::kSharded;
  int node_ranks = 0;  // ranks of each pretended node; 0: all are on one
};

inline TrainedLanes train_lanes(const SmallRun& run, const RanksOf& layout, int steps,
                                const std::vector<std::string>& settings,
                                const std::function<void(Session&)>& at_end = {},
                                const std::function<void(Config&)>& change = {}) {
  Config config = load_config(run.config_path(), settings);
  if (change) change(config);
  config.comm.reducer.sharding = layout.sharding;
  validate_for_ranks(config, layout.ranks);
  std::vector<TrainedLanes> all(static_cast<size_t>(layout.ranks));
  mantissa::run_ranks(layout.ranks, [&](Communicator& local) {
    std::optional<NodeCommunicator> node;
    std::optional<PretendedNodes> nodes;
    if (layout.shares_memory && layout.ranks > 1) node.emplace(local);
    if (layout.node_ranks > 0) nodes.emplace(local, layout.node_ranks);
    Communicator& communicator = nodes ? static_cast<Communicator&>(*nodes) : node ? *node : local;
    TrainedLanes& mine = all[static_cast<size_t>(local.rank())];
    Session session(config, communicator);
    TrainStep step(session);
    while (session.next_step < steps) {
      for (const StepReport& report : step.run()) {
        mine.losses.push_back(std::bit_cast<uint64_t>(report.loss));
        mine.norms.push_back(std::bit_cast<uint64_t>(report.grad_norm));
        mine.applied.push_back(report.applied);
        if (report.gradient_noise) mine.noise.push_back(std::bit_cast<uint64_t>(*report.gradient_noise));
        if (report.curvature) mine.curvatures.push_back(std::bit_cast<uint64_t>(*report.curvature));
      }
      mine.scales.push_back(session.scaler.current_scale());
      session.sharded.optimizer.restore_weights();  // as checkpoints have them, if they travel as codes
      mine.weights.push_back(
          hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream));
    }
    mine.validation = Evaluation(session.config, session.runtime, *session.batches, communicator).run();
    if (at_end) at_end(session);
  });
  for (const TrainedLanes& trained : all) EXPECT_EQ(trained, all[0]) << "ranks disagree";
  return all[0];
}

inline void expect_same_bits(const TrainedLanes& a, const TrainedLanes& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  EXPECT_EQ(a.scales, b.scales) << what;
  EXPECT_EQ(a.applied, b.applied) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
  EXPECT_EQ(a.validation, b.validation) << what;
  EXPECT_EQ(a.noise, b.noise) << what;
  EXPECT_EQ(a.curvatures, b.curvatures) << what;
}

}  // namespace mantissa::testing
