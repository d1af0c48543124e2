// Packed documents and blends in the program: on several ranks, in evaluation, and over a resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "core/tensor/philox.h"
#include "tests/core/data/shard_file.h"
#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

// A shard with masks, a token file of llm.c's kind whose documents end with token 0, and a run of both in fp32.
class PackedRun {
 public:
  explicit PackedRun(const std::string& name, Ranks ranks = Ranks::kThreads) : run_(name, ranks) {
    TokenShardWriter writer(256, "toy");
    for (uint32_t i = 0; i < 200; ++i) {
      std::vector<int32_t> document(2 + philox(1, {i, 0, 0, 0})[0] % 60);
      std::vector<uint8_t> counts(document.size());
      for (uint32_t k = 0; k < document.size(); ++k) {
        document[k] = static_cast<int32_t>(1 + (i + k * k) % 50);
        counts[k] = k > document.size() / 3;
      }
      writer.add(document, counts);
    }
    write_file(run_.folder() + "/chats.safetensors", shard_text(writer));
    std::string tokens;
    for (uint32_t i = 0; i < 3000; ++i) {
      tokens += static_cast<char>(i % 37 == 36 ? 0 : 1 + (i * i) % 90);
      tokens += '\0';
    }
    write_file(run_.folder() + "/texts.bin", tokens);
    settings_ = {fmt::format("data.blend=[{{files: {0}/chats.safetensors, weight: 0.6}}, "
                             "{{files: {0}/texts.bin, weight: 0.4}}]",
                             run_.folder()),
                 "data.train=[]",
                 "data.validation=" + run_.folder() + "/texts.bin",
                 "data.format=tokens",
                 "data.packing=documents",
                 "data.end_of_text=0",
                 "precision.compute=fp32",
                 "comm.wire_dtype=fp32",
                 "train.eval_interval=4",
                 "train.steps=8"};
  }
  Outcome train(int ranks, const std::vector<std::string>& more = {}) const {
    return run_.train(ranks, with(settings_, more));
  }
  const SmallRun& run() const { return run_; }

 private:
  ThreadedRun run_;
  std::vector<std::string> settings_;
};

TEST(PackedTraining, SaysWhatItReadsAndDoesNotDependOnTheNumberOfRanks) {
  const PackedRun one("packed_1");
  const Outcome outcome = one.train(1);
  EXPECT_THAT(outcome.output, HasSubstr("data: 3 files, a blend of 2 sources, 3000 validation tokens"));
  EXPECT_THAT(outcome.output, HasSubstr("data: 60.00 % of the samples from data.blend[0].files: "));
  EXPECT_THAT(outcome.output, HasSubstr("tokens of 82 documents in "));
  EXPECT_THAT(outcome.output, HasSubstr(" packed sequences ("));
  const auto losses = one.run().losses();
  ASSERT_EQ(losses.size(), 8u);
  EXPECT_LT(losses.at(8), losses.at(1));
  for (const int ranks : {2, 3}) {
    const PackedRun several(fmt::format("packed_{}", ranks), ranks == 2 ? Ranks::kProcesses : Ranks::kThreads);
    several.train(ranks);
    EXPECT_LE(largest_difference(losses, several.run().losses()), 1e-5) << ranks;
    const auto expected = one.run().records("validation"), found = several.run().records("validation");
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const double loss = expected[i].at("loss");
      EXPECT_NEAR(found[i].at("loss").get<double>(), loss, 1e-5 * loss);
    }
  }
}

TEST(PackedTraining, GoesOnExactlyWhereItStopped) {
  for (const int ranks : {1, 2}) {
    const PackedRun straight(fmt::format("packed_straight_{}", ranks)), stopped(fmt::format("packed_stop_{}", ranks));
    straight.train(ranks);
    stopped.train(ranks, {"train.stop_at_step=3"});
    stopped.train(ranks);
    EXPECT_EQ(straight.run().losses(), stopped.run().losses());
    EXPECT_EQ(straight.run().hashes(8), stopped.run().hashes(8));
  }
}

// A changed weight changes the samples; moved files do not.
TEST(PackedTraining, ABlendMayMoveButKeepsItsWeights) {
  const PackedRun run("packed_weights");
  run.train(1, {"train.stop_at_step=3"});
  const std::string folder = run.run().folder();
  const auto blend = [&folder](double weight, const std::string& name) {
    return fmt::format("data.blend=[{{files: {0}/{1}, weight: {2}}}, {{files: {0}/texts.bin, weight: 0.4}}]", folder,
                       name, weight);
  };
  const Outcome refused = run_verb({"train", run.run().run_dir(), blend(0.7, "chats.safetensors")});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("data.blend[0].weight: 0.6 -> 0.7"));
  write_file(folder + "/moved.safetensors", read_file(folder + "/chats.safetensors"));
  const Outcome moved = run_verb({"train", run.run().run_dir(), blend(0.6, "moved.safetensors")});
  EXPECT_EQ(moved.exit_code, 0) << moved.output;
}

}  // namespace
}  // namespace mantissa::testing
