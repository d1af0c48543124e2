// Training steps on packed documents, on ranks that are threads.
#include <gtest/gtest.h>

#include <thread>

#include "comm/local/local_communicator.h"
#include "tests/core/data/shard_file.h"
#include "tests/program/program.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

// A shard whose documents have a mask each, which leaves some sequences with few targets.
std::string write_chats(const SmallRun& run) {
  TokenShardWriter writer(256, "toy");
  for (int i = 0; i < 100; ++i) {
    std::vector<int32_t> document(static_cast<size_t>(2 + i * 13 % 50));
    std::vector<uint8_t> counts(document.size());
    for (size_t k = 0; k < document.size(); ++k) {
      document[k] = static_cast<int32_t>((static_cast<size_t>(i) + k * k) % 200);
      counts[k] = k > document.size() / 2;
    }
    writer.add(document, counts);
  }
  std::string path = run.folder() + "/chats.safetensors";
  write_file(path, shard_text(writer));
  return path;
}

std::vector<StepReport> steps_on(int ranks, const Config& config) {
  LocalGroup group(ranks);
  std::vector<StepReport> reports;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Session session(config, group.rank(rank));
      TrainStep step(session);
      for (int i = 0; i < 3; ++i) {
        std::vector<StepReport> known = step.run();
        if (rank == 0) reports.insert(reports.end(), known.begin(), known.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reports;
}

TEST(PackedSteps, AverageOverTheTargetsThatCountOnAllRanks) {
  const SmallRun run("packed_steps");
  const Config config =
      load_config(run.config_path(), {"data.train=" + write_chats(run), "data.format=tokens", "data.packing=documents",
                                      "precision.compute=fp32", "comm.wire_dtype=fp32"});
  const auto batches = open_batches(config, Objective::kNextToken);
  const std::vector<StepReport> one = steps_on(1, config);
  ASSERT_EQ(one.size(), 3u);
  for (size_t step = 0; step < one.size(); ++step) {
    std::vector<int32_t> tokens(12 * 32), targets(tokens), starts(tokens);
    batches->train(12 * step, {tokens, targets, starts});
    EXPECT_EQ(one[step].tokens, count_targets(targets));
    EXPECT_LT(one[step].tokens, std::ssize(targets) / 2 + 12);
  }
  for (const int ranks : {2, 3}) {
    const std::vector<StepReport> several = steps_on(ranks, config);
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_EQ(several[step].tokens, one[step].tokens);
      EXPECT_NEAR(several[step].loss, one[step].loss, 1e-5 * one[step].loss) << ranks << " ranks, step " << step;
      EXPECT_NEAR(several[step].grad_norm, one[step].grad_norm, 1e-5 * one[step].grad_norm);
    }
  }
}

// No target counts: the loss is 0, and so is the gradient.
TEST(PackedSteps, OfIgnoredTargetsChangeNothing) {
  const SmallRun run("ignored_steps");
  TokenShardWriter writer(256, "toy");
  for (int i = 0; i < 40; ++i) writer.add(std::vector<int32_t>(33, i), std::vector<uint8_t>(33, 0));
  write_file(run.folder() + "/silent.safetensors", shard_text(writer));
  const Config config =
      load_config(run.config_path(), {"data.train=" + run.folder() + "/silent.safetensors", "data.format=tokens"});
  for (const StepReport& report : steps_on(2, config)) {
    EXPECT_EQ(report.loss, 0.0);
    EXPECT_EQ(report.grad_norm, 0.0);
    EXPECT_TRUE(report.applied);
  }
}

}  // namespace
}  // namespace mantissa::testing
