// `profile: true` of the program: the same training, and files of every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Complete events of a thread lie within or after each other. Times are differences of doubles.
void expect_nested(const nlohmann::json& trace, int rank) {
  constexpr double kRoundingUs = 1e-3;
  std::map<int, std::vector<std::pair<double, double>>> open;  // by thread: begin and end, innermost last
  size_t events = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {  // in the order in which they began
    ASSERT_EQ(event.at("pid"), rank);
    if (event.at("ph") != "X") continue;
    ++events;
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    ASSERT_LE(begin, end);
    auto& stack = open[event.at("tid")];
    while (!stack.empty() && stack.back().second <= begin + kRoundingUs) stack.pop_back();
    if (!stack.empty()) {
      ASSERT_GE(begin, stack.back().first - kRoundingUs) << event;
      ASSERT_LE(end, stack.back().second + kRoundingUs) << event;
    }
    stack.emplace_back(begin, end);
  }
  EXPECT_GT(events, 100u);
  EXPECT_EQ(open.size(), 2u);  // phases and operations
}

void expect_files(const SmallRun& run, int rank) {
  const std::string number = std::to_string(rank);
  const std::string trace = read_file(run.run_dir() + "/trace_rank" + number + ".json");
  ASSERT_TRUE(nlohmann::json::accept(trace)) << trace.substr(0, 200);
  expect_nested(nlohmann::json::parse(trace), rank);
  const std::string table = read_file(run.run_dir() + "/profile_rank" + number + ".txt");
  EXPECT_THAT(table, HasSubstr("rank " + number));
  EXPECT_THAT(table, ContainsRegex("backward +gemm bf16 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+\n"));
  EXPECT_THAT(table, ContainsRegex("ceilings: GEMM bf16 [0-9.]+ GFLOP/s, memory [0-9.]+ GB/s"));
}

TEST(Profile, TwoRanksLearnTheSameAndEachTellsWhereItsTimeWent) {
  const std::vector<std::string> settings = {"train.steps=8"};
  const ThreadedRun plain("plain_2"), profiled("profiled_2", Ranks::kProcesses);
  const Outcome without = plain.train(2, settings);
  EXPECT_THAT(without.output, Not(HasSubstr("profile")));
  EXPECT_FALSE(std::filesystem::exists(plain.run_dir() + "/trace_rank0.json"));
  const Outcome outcome = profiled.train(2, {"train.steps=8", "profile=true"});
  ASSERT_EQ(plain.losses().size(), 8u);
  EXPECT_EQ(profiled.losses(), plain.losses());
  EXPECT_THAT(outcome.output, ContainsRegex("profile: [0-9.]+ ms a step, mean of 6 steps, rank 0 "
                                            "\\([0-9.]+ to [0-9.]+ ms over 2 ranks\\)\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("backward +node_barrier +[1-9]"));
  // If the other rank lags, as on a busy machine, all sums come after the backward pass.
  EXPECT_THAT(outcome.output, ContainsRegex("(backward|reduce) +sum_contributions +[1-9]"));
  EXPECT_THAT(outcome.output, ContainsRegex("update +node_barrier +[1-9]"));
  EXPECT_THAT(outcome.output, ContainsRegex("node_barrier in all phases: [0-9.]+ ms a step\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("all_gather in all phases: [0-9.]+ ms a step, [0-9.]+ MB sent"));
  for (const int rank : {0, 1}) expect_files(profiled, rank);
}

TEST(Profile, OneRankWithoutMpirun) {
  const ThreadedRun plain("plain_1"), profiled("profiled_1");
  plain.train(0, {"train.steps=8"});
  profiled.train(0, {"train.steps=8", "profile=true"});
  ASSERT_EQ(plain.losses().size(), 8u);
  EXPECT_EQ(profiled.losses(), plain.losses());
  const auto tensors = [](const SmallRun& run) {  // the configuration is another one
    auto files = run.hashes(8);
    std::erase_if(files, [](const auto& file) { return !file.first.ends_with(".safetensors"); });
    return files;
  };
  EXPECT_FALSE(tensors(plain).empty());
  EXPECT_EQ(tensors(profiled), tensors(plain));
  expect_files(profiled, 0);
}

TEST(Profile, ARunThatStopsOnFaultsStillTells) {
  SmallRun run("faulty");
  run.with_yaml("test: {activations: [{step: 6, rank: 0, layer: blocks.0.mlp, op: gelu, value: nan}]}\n");
  const Outcome outcome = run.try_train(2, {"profile=true", "faults.max_consecutive=1"});
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("profile: [0-9.]+ ms a step, mean of [0-9]+ steps"));
  for (const int rank : {0, 1}) expect_files(run, rank);
}

}  // namespace
}  // namespace mantissa::testing
