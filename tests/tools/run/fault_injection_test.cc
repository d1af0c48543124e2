#include "tools/run/guard/fault_injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <map>
#include <thread>

#include "comm/local/local_communicator.h"
#include "core/base/error.h"
#include "core/io/checkpoint_store.h"
#include "tests/program/program.h"
#include "tools/run/guard/black_box.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kParameter = "blocks.0.mlp.up.weight";

// The bits of every tensor that a fault may change, after each step, by "rank/target/parameter".
using Bits = std::map<std::string, std::vector<uint8_t>>;

void collect(const std::string& key, const Tensor& tensor, Session& session, Bits& bits) {
  if (!tensor.defined()) return;
  std::vector<uint8_t> bytes(tensor.size_bytes());
  session.runtime.backend->download(tensor, bytes.data(), *session.runtime.stream);
  bits[key].insert(bits[key].end(), bytes.begin(), bytes.end());
}

struct Ranks {
  std::vector<Bits> by_rank;
  std::vector<StepReport> reports;  // of rank 0
  std::string error;                // of rank 0
};

// Trains ranks of one process for `steps` steps.
Ranks train_ranks(const SmallRun& run, int ranks, int steps, const std::vector<std::string>& settings) {
  const Config config =
      load_config(run.config_path(), with({"device=cpu", "precision.compute=bf16", "train.steps=5"}, settings));
  LocalGroup group(ranks);
  Ranks all;
  all.by_rank.resize(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Session session(config, group.rank(rank));
        TrainStep step(session);
        for (int index = 0; index < steps; ++index) {
          for (StepReport& report : step.run()) {
            if (rank == 0) all.reports.push_back(std::move(report));
          }
        }
        session.faults.finish();
        Bits& bits = all.by_rank[static_cast<size_t>(rank)];
        for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
          collect("master/" + piece.parameter->name, piece.master, session, bits);
          collect("m/" + piece.parameter->name, piece.m, session, bits);
          collect("v/" + piece.parameter->name, piece.v, session, bits);
        }
        for (int index = 0; index < session.runtime.parameters.size(); ++index) {
          const Parameter& parameter = session.runtime.parameters[index];
          collect("weight/" + parameter.name, parameter.weight, session, bits);
          collect("gradient/" + parameter.name, parameter.gradient, session, bits);
        }
      } catch (const ConfigError& error) {
        if (rank == 0) all.error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

int differing_bits(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  int count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
  return count;
}

// With such a learning rate, a step leaves masters and weights as they are.
const std::vector<std::string> kStill = {"optimizer.lr=1e-30", "optimizer.weight_decay=0"};

std::string flip(const std::string& rest) {
  return std::string("test.faults=[{kind: flip, step: 2, parameter: ") + kParameter + ", " + rest + "}]";
}

TEST(FaultInjection, FlipsOneBitOfAMaster) {
  const SmallRun run("flip_master");
  const Ranks clean = train_ranks(run, 1, 2, kStill);
  const Ranks flipped = train_ranks(run, 1, 2, with(kStill, {flip("target: master, element: 70, bit: 9")}));
  ASSERT_EQ(flipped.error, "");
  for (const auto& [key, bits] : clean.by_rank[0]) {
    if (!key.starts_with("master/")) continue;
    EXPECT_EQ(differing_bits(bits, flipped.by_rank[0].at(key)), key.ends_with(kParameter) ? 1 : 0) << key;
  }
  const auto &before = clean.by_rank[0].at(std::string("master/") + kParameter),
             &after = flipped.by_rank[0].at(std::string("master/") + kParameter);
  EXPECT_EQ(before[4 * 70 + 1] ^ after[4 * 70 + 1], 2) << "Bit 9 of element 70.";
}

TEST(FaultInjection, ReachesEveryTarget) {
  const SmallRun run("flip_targets");
  const Ranks clean = train_ranks(run, 1, 2, kStill);
  for (const auto& [target, key] :
       std::map<std::string, std::string>{{"gradient", "gradient"}, {"first_moment", "m"}, {"second_moment", "v"}}) {
    const Ranks flipped = train_ranks(run, 1, 2, with(kStill, {flip("bit: 22, element: 3, target: " + target)}));
    ASSERT_EQ(flipped.error, "");
    const std::string name = key + "/" + kParameter;
    EXPECT_NE(clean.by_rank[0].at(name), flipped.by_rank[0].at(name)) << target;
    const std::string other = key + "/blocks.0.mlp.up.bias";
    EXPECT_EQ(clean.by_rank[0].at(other), flipped.by_rank[0].at(other)) << target;
  }
  // Updates write the working weight anew, from the master: its fault shows in the step's gradients.
  const Ranks weight = train_ranks(run, 1, 2, with(kStill, {flip("bit: 13, element: 3, target: weight")}));
  EXPECT_EQ(clean.by_rank[0].at(std::string("weight/") + kParameter),
            weight.by_rank[0].at(std::string("weight/") + kParameter));
  EXPECT_NE(clean.reports[1].loss, weight.reports[1].loss);
  EXPECT_EQ(clean.reports[0].loss, weight.reports[0].loss);
}

TEST(FaultInjection, ChangesWhatLeavesARank) {
  const SmallRun run("flip_wire");
  for (const auto& [wire, bit] : {std::pair("bf16", 14), std::pair("fp32", 14), std::pair("e4m3", 6)}) {
    const std::string setting = std::string("comm.wire_dtype=") + wire;
    const Ranks without = train_ranks(run, 2, 2, {setting});
    const Ranks flipped =
        train_ranks(run, 2, 2, {setting, flip(fmt::format("target: wire, rank: 1, element: 5, bit: {}", bit))});
    ASSERT_EQ(flipped.error, "");
    EXPECT_EQ(without.reports[0].grad_norm, flipped.reports[0].grad_norm);
    EXPECT_NE(without.reports[1].grad_norm, flipped.reports[1].grad_norm) << wire;
  }
}

// A step that runs again, for example to find out why it was skipped, must not flip the bit back.
TEST(FaultInjection, FlipsABitOnceAndOverwritesAValueEveryTime) {
  const SmallRun run("flip_once");
  for (const auto& [kind, changed_bits] : std::map<std::string, int>{{"flip, bit: 30", 1}, {"inf", 8}}) {
    const Config config = load_config(
        run.config_path(), {"device=cpu", fmt::format("test.faults=[{{kind: {}, parameter: {}}}]", kind, kParameter)});
    LocalGroup group(1);
    Session session(config, group.rank(0));
    const Parameter& parameter = *session.runtime.parameters.find(kParameter);
    const auto bits = [&] {
      Bits found;
      collect("gradient", parameter.gradient, session, found);
      return found.at("gradient");
    };
    const std::vector<uint8_t> before = bits();
    session.faults.on_gradient(0, parameter);  // to calibrate, before the step begins
    if (changed_bits == 1) {
      EXPECT_EQ(bits(), before);
    }
    session.faults.begin_step(0);
    for (int pass = 0; pass < 2; ++pass) {
      session.faults.on_gradient(0, parameter);
      EXPECT_EQ(differing_bits(before, bits()), changed_bits) << kind;
    }
    session.faults.on_gradient(1, parameter);
    EXPECT_EQ(differing_bits(before, bits()), changed_bits) << kind;
  }
}

TEST(FaultInjection, ANanOfOneRankIsSkippedByAll) {
  const SmallRun run("nan_gradient");
  const std::string nan = std::string("test.faults=[{kind: nan, step: 2, rank: 1, parameter: ") + kParameter + "}]";
  const Ranks ranks = train_ranks(run, 2, 3, {nan});
  ASSERT_EQ(ranks.reports.size(), 3U);
  EXPECT_FALSE(ranks.reports[1].applied);
  ASSERT_TRUE(ranks.reports[1].offender.has_value());
  EXPECT_EQ(ranks.reports[1].offender->rank, 1);
  EXPECT_TRUE(ranks.reports[2].applied);
}

TEST(FaultInjection, NamesThePlansThatCannotBe) {
  const SmallRun run("bad_plans");
  const auto error = [&](const std::string& fault, const std::vector<std::string>& settings = {}, int ranks = 1) {
    return train_ranks(run, ranks, 5, with({"test.faults=[{" + fault + "}]"}, settings)).error;
  };
  const std::string up = std::string("parameter: ") + kParameter;
  EXPECT_EQ(error("parameter: blocks.9.weight"),
            "test.faults[0].parameter: the model has no parameter 'blocks.9.weight'");
  EXPECT_THAT(error(up + ", element: 4096"), HasSubstr("test.faults[0].element: 'blocks.0.mlp.up.weight' has 4096 "));
  EXPECT_THAT(error(up + ", target: wire"),
              HasSubstr("test.faults[0].target: a rank of several lanes sends sums, one rank nothing"));
  EXPECT_THAT(error(up + ", target: master", {"optimizer.master=kahan"}), HasSubstr("keeps no masters"));
  EXPECT_THAT(error(up + ", target: weight, kind: flip, bit: 16"), HasSubstr("is bf16, which has no bit 16"));
  EXPECT_THAT(error(up + ", target: first_moment", {"optimizer.first_moment=8bit"}), HasSubstr("which have no inf"));
  EXPECT_THAT(error(up + ", target: master, element: 4095", {}, 2), HasSubstr("give rank 1"));
  EXPECT_EQ(error("kind: sleep, phase: sample, seconds: 0.0, step: 2"),
            "test.faults[0].phase: step 2 had no phase sample");
  EXPECT_EQ(error("kind: deadlock, step: 5, phase: data"),
            "test.faults[0].phase: step 5 had no phase data with a collective");
  EXPECT_THAT(error("kind: no_space, file: /checkpoints/, step: 2"), HasSubstr("test.faults[0].file: from step 2 on"));
}

TEST(FaultInjection, DrawsTheSameFaultsOnEveryRank) {
  const SmallRun run("random_faults");
  const auto plan_of = [&](uint64_t seed, int rank, LocalGroup& group) {
    const Config config = load_config(run.config_path(), {"device=cpu", "test.random.count=40",
                                                          "test.random.kinds=[nan, flip, kill, sleep, no_space]",
                                                          "train.steps=9", "test.random.seed=" + std::to_string(seed)});
    Config without = config;
    without.test = {};
    const Session session(without, group.rank(rank));
    std::vector<std::string> texts;
    for (const PlannedFault& fault : plan_faults(config, session.sharded)) {
      EXPECT_LE(fault.step, 9);
      EXPECT_LT(fault.rank, 2);
      texts.push_back(describe(fault));
    }
    return texts;
  };
  const auto plans_of = [&](uint64_t seed) {
    LocalGroup group(2);
    std::vector<std::vector<std::string>> plans(2);
    std::thread other([&] { plans[1] = plan_of(seed, 1, group); });
    plans[0] = plan_of(seed, 0, group);
    other.join();
    return plans;
  };
  const auto plans = plans_of(7);
  EXPECT_EQ(plans[0], plans[1]);
  EXPECT_EQ(plans_of(7), plans);
  EXPECT_NE(plans_of(8), plans);
  EXPECT_GT(std::set<std::string>(plans[0].begin(), plans[0].end()).size(), 30U);
}

TEST(FaultInjection, TellsTheBlackBox) {
  const SmallRun run("fault_event");
  const std::string folder = fresh_folder("fault_box");
  {
    const BlackBox box(folder, 0, 1);
    train_ranks(run, 1, 2, {flip("bit: 3")});
  }
  std::vector<std::string> names;
  for (const BlackBoxEvent& event : read_black_box(BlackBox::path(folder, 0)).events) {
    if (event.kind == BlackBoxEvent::Kind::kFault) names.push_back(describe_event(event));
  }
  EXPECT_THAT(names, ElementsAre("the fault test.faults[0]"));
}

// ---- Files.

class FileFaults : public ::testing::Test {
 protected:
  // Writes a checkpoint file while a fault is due, and returns the error.
  std::string write(const std::string& fault) {
    const Config config = load_config(run_.config_path(), {"device=cpu", "test.faults=[{" + fault + "}]"});
    Session session(config, group_.rank(0));
    session.faults.begin_step(0);
    std::filesystem::remove(folder_ + "/data");
    try {
      CheckpointFileWriter file(folder_, "data");
      file.write(std::as_bytes(std::span(text_)));
      record_ = file.close();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "";
  }
  std::string written() const { return read_file(folder_ + "/data"); }

  const SmallRun run_{"file_faults"};
  LocalGroup group_{1};
  const std::string folder_ = fresh_folder("file_faults_files");
  const std::string text_ = std::string(1000, 'x');
  CheckpointFile record_;
};

TEST_F(FileFaults, AShortWriteGoesOn) {
  EXPECT_EQ(write("kind: short_write"), "");
  EXPECT_EQ(written(), text_);
}

TEST_F(FileFaults, NoSpaceIsAnErrorOnce) {
  EXPECT_THAT(write("kind: no_space, file: other"), "");
  EXPECT_THAT(write("kind: no_space, file: /data"), HasSubstr("No space left on device"));
}

TEST_F(FileFaults, ACorruptFileDiffersFromItsHash) {
  EXPECT_EQ(write("kind: corrupt"), "");
  EXPECT_EQ(written().size(), text_.size());
  EXPECT_NE(written(), text_);
  EXPECT_EQ(record_.xxh3_128, xxh3_128_hex(std::as_bytes(std::span(text_))));
}

TEST_F(FileFaults, ReadingFails) {
  const Config config =
      load_config(run_.config_path(), {"device=cpu", "test.faults=[{kind: read_error, step: 2, file: text}]"});
  Session session(config, group_.rank(0));
  TrainStep step(session);
  step.run();
  EXPECT_EQ(step.data_error(), "");
  step.run();
  EXPECT_THAT(step.data_error(), HasSubstr("text.txt: cannot read the file: Input/output error"));
}

}  // namespace
}  // namespace mantissa::testing
