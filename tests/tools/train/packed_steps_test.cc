// Training steps on packed documents, on ranks that are threads.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <thread>

#include "comm/local/local_communicator.h"
#include "tests/core/data/shard_file.h"
#include "tests/program/program.h"
#include "tests/testing/weight_hash.h"
#include "tools/run/metrics/metric_table.h"
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

// `weights`: if not null, hashes of rank 0's before the first step and after each.
std::vector<StepReport> steps_on(int ranks, const Config& config, int steps = 3,
                                 std::vector<uint64_t>* weights = nullptr) {
  LocalGroup group(ranks);
  std::vector<StepReport> reports;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Session session(config, group.rank(rank));
      TrainStep step(session);
      const auto keep_hash = [&] {
        if (rank > 0 || weights == nullptr) return;
        weights->push_back(hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream));
      };
      keep_hash();
      for (int i = 0; i < steps; ++i) {
        std::vector<StepReport> known = step.run();
        if (rank == 0) reports.insert(reports.end(), known.begin(), known.end());
        keep_hash();
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

// Each sequence is a document, and one document in four has targets. Weight decay would change the weights.
TEST(PackedSteps, WithoutATargetAreSkipped) {
  const SmallRun run("skipped_steps");
  TokenShardWriter writer(256, "toy");
  for (int i = 0; i < 16; ++i) writer.add(std::vector<int32_t>(33, i), std::vector<uint8_t>(33, i % 4 == 0));
  write_file(run.folder() + "/few.safetensors", shard_text(writer));
  const Config config =
      load_config(run.config_path(), {"data.train=" + run.folder() + "/few.safetensors", "data.format=tokens",
                                      "data.packing=documents", "train.global_batch=2", "train.micro_batch=1",
                                      "optimizer.weight_decay=0.5", "stop_rules.action=skip"});
  std::vector<uint64_t> weights;
  const std::vector<StepReport> reports = steps_on(2, config, 8, &weights);
  ASSERT_EQ(reports.size(), 8u);
  int64_t targets = 0;
  for (size_t step = 0; step < reports.size(); ++step) {
    const StepReport& report = reports[step];
    targets += report.tokens;
    EXPECT_EQ(report.applied, report.tokens > 0) << step;
    EXPECT_EQ(report.lacks_targets(), report.tokens == 0) << step;
    EXPECT_EQ(std::isnan(report.loss), report.tokens == 0) << step;
    EXPECT_EQ(weights[step + 1] == weights[step], report.tokens == 0) << step;
    EXPECT_FALSE(report.spike) << step;
    if (report.tokens > 0) continue;
    EXPECT_NE(report.skip_reason({}).find("no token of the global batch is a target"), std::string::npos);
    const nlohmann::json record = step_json({.report = report, .speed = {}, .skip_reason = report.skip_reason({})});
    EXPECT_EQ(record.at("tokens"), 0);
    EXPECT_TRUE(record.at("loss").is_null());
    EXPECT_EQ(record.at("applied"), false);
  }
  EXPECT_EQ(targets, 4 * 32) << "an epoch";
}

}  // namespace
}  // namespace mantissa::testing
