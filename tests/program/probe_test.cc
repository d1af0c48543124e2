// Training with probes, on one and two ranks.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "tests/program/threaded_run.h"
#include "tests/tools/probe/probe_rows.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

std::vector<std::string> with_probes(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"probe.enabled=true", "probe.interval=3"});
  return settings;
}

ProbeRows probes_of(const SmallRun& run) { return ProbeRows(run.run_dir() + "/probes.mtp"); }

// Rows of a role, by tensor, of one step: a column's values.
template <typename T>
std::map<std::string, T> column_of(const ProbeRows& file, const std::vector<T>& column, int64_t step,
                                   const std::string& role) {
  const auto steps = file.integers("step");
  const auto roles = file.texts("role"), tensors = file.texts("tensor");
  std::map<std::string, T> found;
  for (size_t row = 0; row < steps.size(); ++row) {
    if (steps[row] == step && roles[row] == role) found[tensors[row]] = column[row];
  }
  return found;
}

class ProbesOnRanks : public ::testing::TestWithParam<int> {};

// Bit for bit, also where linear layers round their operands and would not keep them otherwise.
TEST_P(ProbesOnRanks, ChangeNothingOfTheTraining) {
  const int ranks = GetParam();
  for (const std::string recipe : {"none", "delayed"}) {
    const std::vector<std::string> settings = {"train.steps=8", "precision.recipe=" + recipe, "checkpoint.interval=8"};
    const ThreadedRun plain(fmt::format("unseen_{}_{}", recipe, ranks));
    plain.train(ranks, settings);
    const ThreadedRun seen(fmt::format("seen_{}_{}", recipe, ranks));
    const Outcome outcome = seen.train(ranks, with_probes(settings));
    EXPECT_EQ(seen.losses(), plain.losses());
    const auto expected = plain.hashes(8), found = seen.hashes(8);
    EXPECT_EQ(found.at("model.safetensors"), expected.at("model.safetensors"));
    EXPECT_EQ(found, expected);
    const size_t told = outcome.output.find(", for `mantissa analyze probes`");
    EXPECT_NE(told, std::string::npos) << outcome.output;
    EXPECT_LT(told, outcome.output.find("\nto continue: ")) << "the next commands come last";
    EXPECT_NE(outcome.output.find("a probed step took"), std::string::npos) << "the cost is stated";
  }
}

TEST_P(ProbesOnRanks, FindEveryRoleInTheStepsThatAreDue) {
  const int ranks = GetParam();
  const ThreadedRun run(fmt::format("roles_{}", ranks), ranks == 2 ? Ranks::kProcesses : Ranks::kThreads);
  run.train(ranks, with_probes({"train.steps=8", "precision.recipe=delayed"}));
  const ProbeRows file = probes_of(run);
  const auto steps = file.integers("step");
  EXPECT_EQ(std::set<int64_t>(steps.begin(), steps.end()), (std::set<int64_t>{1, 4, 7}));

  const auto roles = file.texts("role");
  std::set<std::string> expected = {"activation",         "weight", "gradient", "output", "input gradient",
                                    "parameter gradient", "update", "fprop",    "dgrad",  "wgrad"};
  if (ranks > 1) expected.insert("wire");  // one rank sends nothing
  EXPECT_EQ(std::set<std::string>(roles.begin(), roles.end()), expected);

  // A micro-batch of 2 samples of 32 rows on each rank; weights are the same on all of them.
  const auto elements = file.integers("elements");
  EXPECT_EQ(column_of(file, elements, 4, "activation").at("blocks.1.mlp.up"), ranks * 2 * 32 * 32);
  EXPECT_EQ(column_of(file, elements, 4, "weight").at("blocks.1.mlp.up"), 32 * 128);
  EXPECT_EQ(column_of(file, elements, 4, "parameter gradient").at("blocks.1.mlp.up.weight"), 32 * 128);
  EXPECT_EQ(column_of(file, elements, 4, "update").at("blocks.1.mlp.up.weight"), 32 * 128);
  EXPECT_EQ(column_of(file, file.texts("format"), 4, "gradient").at("blocks.1.mlp.up"), "delayed:e5m2");

  // e4m3 rounds to 3 bits: some 25 to 35 dB, by the precision of its numbers.
  for (const auto& [layer, snr] : column_of(file, file.reals("snr_db"), 4, "fprop")) {
    if (layer == "head") continue;
    EXPECT_GT(snr, 20.0f) << layer;
    EXPECT_LT(snr, 45.0f) << layer;
  }
  for (const auto& [layer, ratio] : column_of(file, file.reals("noise_ratio"), 4, "wgrad")) {
    EXPECT_GE(ratio, 0.0f) << layer;
    EXPECT_LT(ratio, 1.0f) << layer << ": the choice of samples is noisier than rounding";
  }
  for (const auto& [parameter, snr] : column_of(file, file.reals("snr_db"), 4, "wire")) {
    EXPECT_GT(snr, 45.0f) << parameter << ": bf16 keeps 8 bits";
    EXPECT_LT(snr, 80.0f) << parameter;
  }
  for (const auto& [tensor, drift] : column_of(file, file.reals("drift"), 4, "weight")) {
    EXPECT_LT(std::fabs(drift), 1.0f) << tensor;
  }
}

// Codes have a scale for each block: their losses are those of mxfp8, of every element of the parameter.
TEST(Probes, KnowTheCodesOfGradientsBetweenRanks) {
  const ThreadedRun run("probes_codes");
  run.train(2, with_probes({"train.stop_at_step=4", "comm.wire_dtype=e4m3"}));
  const ProbeRows file = probes_of(run);
  for (const auto& [parameter, format] : column_of(file, file.texts("format"), 4, "wire")) {
    EXPECT_EQ(format, "mxfp8:e4m3") << parameter;
  }
  for (const auto& [parameter, snr] : column_of(file, file.reals("snr_db"), 4, "wire")) {
    EXPECT_GT(snr, 25.0f) << parameter << ": 4 bits of 32 neighbours";
    EXPECT_LT(snr, 45.0f) << parameter;
  }
}

INSTANTIATE_TEST_SUITE_P(OneAndTwo, ProbesOnRanks, ::testing::Values(1, 2));

TEST(Probes, ArePrintedAsCommaSeparatedValues) {
  const ThreadedRun run("probes_printed");
  run.train(1, with_probes({"train.stop_at_step=4"}));
  const auto print = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"analyze", "probes", run.run_dir()});
    return run_verb(options);
  };
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const Outcome all = run_program(0, {"analyze", "probes", run.run_dir()});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(print({}).output, all.output);
  EXPECT_EQ(lines(all.output), 1 + probes_of(run).rows());
  EXPECT_EQ(all.output.rfind("step,role,tensor,format,scale,", 0), 0u) << all.output.substr(0, 100);
  const Outcome some = print({"--role", "gradient", "--tensor", "mlp", "--step", "4", "--format", "fp16"});
  EXPECT_EQ(lines(some.output), 1 + 2 * 2) << some.output;
  EXPECT_NE(some.output.find(",fp16_underflowed,"), std::string::npos);
  EXPECT_EQ(print({"--format", "fp12"}).exit_code, 2);
  const Outcome unknown = print({"--role", "nonsense"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.output.find("--role: expected one of activation, weight, gradient, "), std::string::npos);
  EXPECT_NE(unknown.output.find("wgrad, got 'nonsense'"), std::string::npos) << unknown.output;
  const Outcome absent = print({"--role", "wire"});
  EXPECT_EQ(absent.exit_code, 0) << "a role, of which one rank has no rows";
  EXPECT_EQ(lines(absent.output), 1);
  const Outcome counted =
      print({"--sql", "SELECT step, count(*) AS rows FROM probes WHERE role = 'fprop' GROUP BY step"});
  EXPECT_EQ(counted.exit_code, 0) << counted.output;
  EXPECT_EQ(counted.output.rfind("step,rows\n1,", 0), 0u) << counted.output;
  EXPECT_EQ(lines(counted.output), 1 + 2) << counted.output;
  const Outcome wrong = print({"--sql", "SELEC step FROM probes"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.output.find("near \"SELEC\": syntax error; the table is probes, its columns are step, role, "),
            std::string::npos)
      << wrong.output;
  const std::string copy = run.folder() + "/copy.db";
  for (const std::string& sql : {std::string("DELETE FROM probes"), std::string("DELETE FROM probes RETURNING step"),
                                 "VACUUM INTO '" + copy + "'", "ATTACH '" + copy + "' AS other"}) {
    const Outcome writing = print({"--sql", sql});
    EXPECT_EQ(writing.exit_code, 2) << sql;
    EXPECT_EQ(writing.output, "error: --sql: expected a query, which changes nothing, got '" + sql + "'\n");
  }
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_EQ(print({"--sql", ""}).exit_code, 2);
  EXPECT_EQ(print({"--sql", "SELECT 1", "--tensor", "head"}).exit_code, 2);
  EXPECT_EQ(run_verb({"analyze", "probes", run.folder()}).exit_code, 3);
  const Outcome device = run_verb({"analyze", "probes", "/dev/null"});
  EXPECT_EQ(device.exit_code, 3) << device.output;
  EXPECT_NE(device.output.find("/dev/null: expected a probe file"), std::string::npos) << device.output;
}

TEST(Probes, GoOnBehindACheckpoint) {
  const ThreadedRun run("probes_resume");
  run.train(1, with_probes({"train.steps=8", "train.stop_at_step=5"}));
  run.train(1, with_probes({"train.steps=8"}));
  const auto steps = probes_of(run).integers("step");
  EXPECT_EQ(std::set<int64_t>(steps.begin(), steps.end()), (std::set<int64_t>{1, 4, 7}));
}

// With a scale that is too large the first step is skipped: its gradients tell why, and there is no update.
TEST(Probes, ShowSkippedSteps) {
  const ThreadedRun run("probes_skipped");
  run.train(1, with_probes({"train.stop_at_step=2", "precision.compute=fp16", "scaler.mode=dynamic",
                            "scaler.init_scale=4294967296", "scaler.max_scale=4294967296"}));
  const ProbeRows file = probes_of(run);
  int64_t bad = 0;
  for (const auto& [tensor, count] : column_of(file, file.integers("non_finite"), 1, "gradient")) bad += count;
  EXPECT_GT(bad, 0);
  EXPECT_TRUE(column_of(file, file.integers("elements"), 1, "update").empty());
}

// A forward pass that is made again shows its products once.
TEST(Probes, WithRecomputationShowTheSame) {
  const auto amaxes = [](const std::string& recompute) {
    const ThreadedRun run("probes_recompute_" + recompute);
    run.train(1, with_probes({"train.stop_at_step=4", "precision.recipe=current", "train.recompute=" + recompute}));
    const ProbeRows file = probes_of(run);
    std::map<std::string, std::pair<double, double>> found;
    const auto snr = file.reals("snr_db"), amax = file.reals("amax");
    for (const std::string role : {"activation", "gradient", "fprop", "dgrad", "wgrad"}) {
      for (const auto& [tensor, value] : column_of(file, snr, 4, role)) {
        const double largest = column_of(file, amax, 4, role).at(tensor);
        found[role + tensor] = {std::isnan(value) ? 0.0 : value, std::isnan(largest) ? 0.0 : largest};
      }
    }
    return found;
  };
  const auto kept = amaxes("none");
  EXPECT_FALSE(kept.empty());
  EXPECT_EQ(amaxes("full"), kept);
  EXPECT_EQ(amaxes("selective"), kept);
}

// Files that others read are no condition of a run.
TEST(SideFiles, ARunGoesOnWithoutItsSideFiles) {
  SmallRun run("side_files");
  const Outcome outcome = interrupt(
      run, "",
      fmt::format(
          "cd {}; truncate -s 0 probes.mtp-shm; rm run.log metrics.jsonl metrics.prom black_box/*.box; sleep 1.2; "
          "rm probes.mtp; sleep 0.5; kill -USR1 $job",
          run.run_dir()),
      {"train.steps=1000000", "train.log_interval=10", "probe.enabled=true", "probe.interval=1"});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  const std::string text = unwrapped(outcome.output);
  for (const char* warning : {"the log cannot be written to ", "metrics cannot be written to ", "the black box '",
                              "the file probes.mtp-shm was ", "probes are no longer written: "}) {
    const size_t first = text.find(warning);
    EXPECT_NE(first, std::string::npos) << warning << "\n" << text;
    EXPECT_EQ(text.find(warning, first + 1), std::string::npos) << warning << "\n" << text;
  }
  EXPECT_TRUE(std::filesystem::exists(run.run_dir() + "/metrics.prom"));
  EXPECT_EQ(run.try_train(1, {"train.stop_at_step=2"}).exit_code, 2) << "it continues";
}

// SQLite makes its index of the probes anew.
TEST(SideFiles, ProbesSurviveTheLossOfTheirIndex) {
  SmallRun run("probe_index");
  const Outcome outcome =
      interrupt(run, "", "truncate -s 0 " + run.run_dir() + "/probes.mtp-shm",
                {"train.steps=120", "train.log_interval=100", "probe.enabled=true", "probe.interval=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<int64_t> steps = probes_of(run).integers("step");
  EXPECT_EQ(std::set<int64_t>(steps.begin(), steps.end()).size(), 120u);
}

}  // namespace
}  // namespace mantissa::testing
