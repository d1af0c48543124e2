// `mantissa bench comm` as a user runs it.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using Json = nlohmann::json;

Json rows_of(const Json& figures, const std::string& collective, const std::string& path) {
  Json rows = Json::array();
  for (const Json& row : figures.at("rows")) {
    if (row.at("collective") == collective && row.at("path") == path && row.at("scope") == "job") rows.push_back(row);
  }
  return rows;
}

TEST(BenchVerb, ComparesWithTheLibraryAndWritesANetworkThatPlanReads) {
  const std::string folder = fresh_folder("bench_comm"), json = folder + "/bench.json";
  for (const int ranks : {2, 3}) {
    const std::string network = folder + "/network" + std::to_string(ranks) + ".yaml";
    const Outcome outcome = run_program(ranks, {"bench", "comm", "--sizes", "4k,64k", "--rounds", "2", "--repeats", "1",
                                                "--paths", "in_place,messages", "--json", json, "--network", network});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_LT(outcome.output.find("all_gather of "), outcome.output.find("medians of "))  // others are log lines
        << "the verdict comes first: " << outcome.output;
    const Json figures = Json::parse(read_file(json));
    EXPECT_EQ(figures.at("ranks"), ranks);
    EXPECT_EQ(figures.at("node_ranks"), ranks);
    for (const char* const collective : {"all_to_all", "all_gather", "reduce_scatter", "all_reduce"}) {
      EXPECT_EQ(rows_of(figures, collective, "library").size(), 4u) << "two sizes in two dtypes";
      EXPECT_EQ(rows_of(figures, collective, "messages").size(), 4u) << collective;
      for (const Json& row : rows_of(figures, collective, "messages")) {
        EXPECT_GT(row.at("library_seconds").get<double>(), 0.0);
        EXPECT_GT(row.at("busbw_gb_s").get<double>(), 0.0);
      }
    }
    EXPECT_EQ(rows_of(figures, "reduce_scatter", "in_place").size(), 4u);
    const SmallRun run("bench_comm_plan");
    const Outcome plan = run_program(
        0, {"plan", run.config_path(), "train.global_batch=64", "--gpus", std::to_string(ranks), "--network", network});
    EXPECT_EQ(plan.exit_code, 0) << plan.output << read_file(network);
  }
}

TEST(BenchVerb, RunsAlone) {
  const Outcome outcome = run_program(0, {"bench", "comm", "--sizes", "4k", "--rounds", "1", "--dtypes", "fp16"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(BenchVerb, RefusesWrongOptions) {
  const std::string folder = fresh_folder("bench_comm_wrong");
  const auto fails = [&](std::vector<std::string> options, const std::string& text) {
    options.insert(options.begin(), {"bench", "comm"});
    const Outcome outcome = run_program(0, options);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  };
  fails({"--collectives", "broadcast"}, "broadcast");
  fails({"--exchange", "ring"}, "ring");
  fails({"--paths", "telepathy"}, "telepathy");
  fails({"--dtypes", "fp8"}, "fp8");
  fails({"--sizes", "0"}, "--sizes");
  fails({"--sizes", "2g"}, "--sizes");
  fails({"--sizes", "much"}, "much");
  fails({"--rounds", "0"}, "--rounds");
  fails({"--json", folder + "/same", "--network", folder + "/same"}, "--network");
}

}  // namespace
}  // namespace mantissa::testing
