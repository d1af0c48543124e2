// Eight lanes for 200 steps: the same bits on 1, 2, 3, 4 and 8 ranks with every wire dtype, exchange, sharding and
// number of micro-batches. Ranks are threads, processes, or processes on the emulated GPU. lanes_test.cc has a sample.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/tools/train/trained_lanes.h"

namespace mantissa::testing {
namespace {

using Setting = std::tuple<const char*, Sharding, int>;  // wire dtype, sharding, micro-batches of a lane

constexpr int kLanes = 8, kSteps = 200;

class LanesMatrix : public ::testing::TestWithParam<Setting> {
 protected:
  std::string wire() const { return std::get<0>(GetParam()); }
  Sharding sharding() const { return std::get<1>(GetParam()); }

  std::string name_of(const std::string& transport) const {
    return fmt::format("{}_{}_{}_{}", transport, wire(), static_cast<int>(sharding()), std::get<2>(GetParam()));
  }
  std::vector<std::string> settings() const {
    // fp16 begins with steps that overflow.
    return {"precision.compute=" + std::string(wire() == "fp16" ? "fp16" : "bf16"),
            "scaler.init_scale=16777216",
            "comm.wire_dtype=" + wire(),
            fmt::format("optimizer.sharding={}", sharding() == Sharding::kSharded ? "sharded" : "replicated"),
            "comm.bucket_mib=0.02",
            "model.dropout=0.1",
            fmt::format("train.lanes={}", kLanes),
            fmt::format("train.global_batch={}", 2 * kLanes * std::get<2>(GetParam())),
            fmt::format("train.steps={}", kSteps),
            "train.eval_interval=1000"};
  }
  // By `mantissa prove`, as processes.
  void prove(const std::string& program, const std::string& name, const std::vector<std::string>& how,
             const std::vector<std::string>& more = {}) const {
    const SmallRun small(name);
    const std::vector<std::string> arguments = with({"prove", small.config_path()}, with(how, with(settings(), more)));
    const Outcome outcome = run_shell("TMPDIR=/tmp " + command_line(program, arguments));  // short, for sockets
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("same bits: "), std::string::npos) << outcome.output;
  }
};

TEST_P(LanesMatrix, OnThreads) {
  const SmallRun run(name_of("threads"));
  const TrainedLanes one = train_lanes(run, {1, false, sharding()}, kSteps, settings());
  EXPECT_NE(one.weights.front(), one.weights.back());
  for (const int ranks : {2, 3, 4, 8}) {
    for (const std::string exchange : {"direct", "hierarchical", "halving"}) {
      const bool has_nodes = exchange == "hierarchical";
      if (exchange != "direct" && ranks < 4) continue;  // the same groups as direct
      for (const bool shares_memory : {false, true}) {
        if (has_nodes && shares_memory) continue;
        const RanksOf layout{ranks, shares_memory, sharding(), has_nodes ? 2 : 0};
        expect_same_bits(train_lanes(run, layout, kSteps, with(settings(), {"comm.exchange=" + exchange})), one,
                         fmt::format("{} ranks, {}", ranks, exchange));
      }
    }
  }
}

TEST_P(LanesMatrix, OverMpi) {
  prove(
      program_under_test(), name_of("mpi"),
      {"--ranks", "1,2,3,4,8", "--threads", "1,2", "--exchange", "direct,halving", "--steps", std::to_string(kSteps)});
}

// Fewer steps: each takes a hundred times as long as on the CPU.
TEST_P(LanesMatrix, OnTheEmulatedGpu) {
  prove("tools/mantissa_emulated", name_of("emulated"),
        {"--ranks", "1,2,3,4", "--threads", "1", "--exchange", "direct,halving", "--steps", "6"},
        {"device=cuda", "model.layers=1", "model.width=64", "model.heads=1"});
}

INSTANTIATE_TEST_SUITE_P(Settings, LanesMatrix,
                         ::testing::Combine(::testing::Values("fp32", "bf16", "fp16", "e4m3", "e5m2"),
                                            ::testing::Values(Sharding::kSharded, Sharding::kReplicated),
                                            ::testing::Values(1, 3)));

}  // namespace
}  // namespace mantissa::testing
