// `mantissa advise` as a user runs it.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <regex>
#include <sstream>

#include "tests/program/program.h"
#include "tests/testing/every_case.h"
#include "tools/config/config.h"

namespace mantissa::testing {
namespace {

// Removes the line breaks of ReportText.
std::string unwrapped(const std::string& output) { return std::regex_replace(output, std::regex("\n {2,}"), " "); }

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_file(path)); }

// A configuration without data, which are not needed.
std::string config_path(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  write_file(path, R"(
model: {layers: 2, width: 128, heads: 4, context: 128, vocab: 256}
data: {train: [nowhere.txt]}
train: {global_batch: 8, micro_batch: 4}
)");
  return path;
}

const nlohmann::json& precision(const nlohmann::json& report, const std::string& name) {
  for (const auto& one : report.at("precisions")) {
    if (one.at("name") == name) return one;
  }
  throw std::runtime_error("no precision " + name);
}

nlohmann::json advise(const std::string& folder, std::vector<std::string> arguments, Outcome* outcome = nullptr) {
  const std::string json = folder + "/report.json", html = folder + "/report.html";
  arguments.insert(arguments.begin(), {"advise", config_path(folder), "--json", json, "--html", html});
  const Outcome found = run_program(0, arguments);
  EXPECT_EQ(found.exit_code, 0) << found.output;
  EXPECT_NE(read_file(html).find(read_json(json).at("verdict").dump()), std::string::npos)
      << "the page has the figures";
  if (outcome != nullptr) *outcome = found;
  return read_json(json);
}

TEST(Advise, ForAnH100) {
  Outcome outcome;
  const nlohmann::json report =
      advise(fresh_folder("advise_h100"), {"--hardware", "H100", "--ranks", "2", "model.layers=3"}, &outcome);
  EXPECT_NE(outcome.output.find("fastest on NVIDIA H100 SXM 80 GB: "), std::string::npos) << outcome.output;
  EXPECT_NE(unwrapped(outcome.output).find("white paper"), std::string::npos) << "the source of the figures";
  EXPECT_EQ(report.at("hardware").at("flops").at("fp8"), 1978.9e12);
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("tokens_per_step"), 1024);
  EXPECT_EQ(report.at("precisions").size(), 12u) << "nine precisions, and three patterns over bf16";
  EXPECT_TRUE(precision(report, "bf16").at("configured").get<bool>());
  for (const std::string name : {"fp32", "tf32", "bf16", "fp16", "delayed", "current", "block"}) {
    EXPECT_EQ(precision(report, name).at("runs"), "natively") << name;
  }
  for (const std::string name : {"mxfp8", "nvfp4"}) EXPECT_EQ(precision(report, name).at("runs"), "emulated");
  const auto seconds = [&](const std::string& name) {
    return precision(report, name).at("step_seconds").get<double>();
  };
  EXPECT_LT(seconds("tf32"), seconds("fp32"));
  EXPECT_LT(seconds("bf16"), seconds("tf32"));
  for (const std::string name : {"bf16:fp32_ends_low_core", "bf16:attention_high", "bf16:first_last_k_high"}) {
    EXPECT_GT(seconds(name), seconds("bf16")) << name;
    EXPECT_LT(seconds(name), seconds("fp32")) << name;
  }
  EXPECT_GT(seconds("mxfp8"), seconds("bf16")) << "rounding takes additional time";
  for (const auto& one : report.at("precisions")) {
    EXPECT_GT(one.at("step_seconds").get<double>(), 0.0);
    EXPECT_GT(one.at("joules").get<double>(), 0.0);
    EXPECT_GT(one.at("sent_bytes").get<double>(), 0.0);
    EXPECT_GT(one.at("memory_bytes").at("total").get<double>(), 0.0);
    EXPECT_FALSE(one.at("ops").empty());
    EXPECT_FALSE(one.at("reason").get<std::string>().empty());
    EXPECT_NEAR(one.at("tokens_per_second").get<double>() * one.at("step_seconds").get<double>(), 1024, 1e-6);
    if (one.at("name") != "fp32") {
      EXPECT_GE(one.at("speedup_bound").get<double>(), 1.0) << one.at("name");
    }
  }
  const auto& sorted = report.at("precisions");
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.at("step_seconds").template get<double>() < b.at("step_seconds").template get<double>();
  }));
}

TEST(Advise, SaysWhatACardLacks) {
  Outcome outcome;
  const nlohmann::json report = advise(fresh_folder("advise_t4"), {"--hardware", "t4"}, &outcome);
  EXPECT_EQ(precision(report, "fp16").at("runs"), "natively");
  EXPECT_EQ(report.at("precisions")[0].at("name"), "fp16");
  EXPECT_EQ(precision(report, "bf16").at("runs"), "emulated");
  EXPECT_NE(precision(report, "bf16").at("reason").get<std::string>().find("made by fp32 units"), std::string::npos);
  EXPECT_EQ(precision(report, "tf32").at("runs"), "not available");
  EXPECT_FALSE(precision(report, "tf32").contains("step_seconds"));
  EXPECT_NE(outcome.output.find("as configured (bf16): "), std::string::npos) << outcome.output;
  EXPECT_EQ(precision(report, "bf16").at("sent_bytes"), 0.0) << "one rank sends nothing";
}

// Blocks of 128 do not divide a width of 96. The other precisions go on.
TEST(Advise, APrecisionThatTheModelCannotHaveIsRefusedAlone) {
  const nlohmann::json report = advise(fresh_folder("advise_refused"), {"--hardware", "h200", "model.width=96"});
  const nlohmann::json& block = precision(report, "block");
  EXPECT_EQ(block.at("runs"), "refused");
  EXPECT_NE(block.at("reason").get<std::string>().find("needs a multiple of 128"), std::string::npos) << block;
  EXPECT_EQ(precision(report, "delayed").at("runs"), "natively");
}

TEST(Advise, SaysWhereAModelDoesNotFit) {
  const nlohmann::json report =
      advise(fresh_folder("advise_large"),
             {"--hardware", "t4", "--formats", "fp32,fp16", "model.layers=40", "model.width=2048", "model.heads=16"});
  for (const std::string name : {"fp32", "fp16"}) {
    EXPECT_FALSE(precision(report, name).at("fits").get<bool>());
    EXPECT_NE(precision(report, name).at("reason").get<std::string>().find("16.0 GB are there"), std::string::npos);
  }
  EXPECT_NE(report.at("verdict").get<std::string>().find("no precision of these fits"), std::string::npos);
}

TEST(Advise, MeasuresTheDeviceThatIsHere) {
  Outcome outcome;
  const nlohmann::json report =
      advise(fresh_folder("advise_here"), {"device=cpu", "--formats", "fp32,bf16", "--rounds", "1", "model.width=64"},
             &outcome);
  EXPECT_TRUE(report.at("hardware").is_null());
  const nlohmann::json& comparison = report.at("comparison");
  EXPECT_EQ(comparison.at("precision"), "bf16");
  EXPECT_GT(comparison.at("ratio").get<double>(), 0.0);
  EXPECT_FALSE(comparison.at("steps_seconds").empty());
  double predicted = 0.0;
  for (const auto& op : comparison.at("ops")) predicted += op.at("predicted_seconds").get<double>();
  EXPECT_NEAR(predicted, comparison.at("predicted_seconds").get<double>(), 1e-9);
  EXPECT_EQ(precision(report, "fp32").at("runs"), "measured");
  EXPECT_GT(precision(report, "fp32").at("step_seconds").get<double>(), 0.0);
  EXPECT_NE(outcome.output.find("predicted against measured, bf16: "), std::string::npos) << outcome.output;
}

TEST(Advise, RefusesWhatItCannotDo) {
  const std::string config = config_path(fresh_folder("advise_refuses"));
  const auto refused = [&](std::vector<std::string> arguments, const std::string& reason) {
    arguments.insert(arguments.begin(), {"advise", config});
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(reason), std::string::npos) << outcome.output;
  };
  refused({"--hardware", "h101"}, "did you mean 'h100'?");
  refused({"--hardware", "t4", "--formats", "fp9"}, "--formats: expected some of fp64,fp32,tf32");
  refused({"--hardware", "t4", "--ranks", "0"}, "--ranks");
  refused({"--hardware", "t4", "--ranks", "3"}, "3");
  refused({"--ranks", "2"}, "--ranks: one rank of this device is measured, got 2");
  refused({"--hardware", "t4", "--json", "/nowhere/report.json"}, "--json: /nowhere/report.json");
  refused({"--hardware", "t4", "model.heads=5"}, "model.heads");
  const Outcome job = run_program(2, {"advise", config, "--hardware", "t4"});
  EXPECT_EQ(job.exit_code, 2) << job.output;
  EXPECT_NE(job.output.find("advise: expected to be started alone"), std::string::npos) << job.output;
}

// A configuration for GPUs is examined on a machine without one.
TEST(Advise, NeedsNothingOfTheHardwareHere) {
  const nlohmann::json report = advise(fresh_folder("advise_gpu"),
                                       {"--hardware", "a100", "--formats", "bf16", "device=cuda", "comm.backend=nccl"});
  EXPECT_EQ(precision(report, "bf16").at("runs"), "natively");
}

// ---- Plans: --budget.

// Searches a plan for a small run.
class PlanRun : public SmallRun {
 public:
  using SmallRun::SmallRun;

  std::string plan_path() const { return folder() + "/plan.yaml"; }
  std::string page_path() const { return folder() + "/plan.html"; }
  nlohmann::json report() const { return read_json(folder() + "/plan.json"); }
  // `options` are words between spaces.
  Outcome search(const std::string& options) const {
    std::istringstream words(options);
    const std::vector<std::string> more{std::istream_iterator<std::string>(words), {}};
    return run_program(0, with({"advise", config_path(), "--plan", plan_path(), "--json", folder() + "/plan.json",
                                "--html", page_path()},
                               more));
  }
};

TEST(PlanVerb, WritesAPlanThatTrains) {
  const PlanRun run("plan_verb");
  const Outcome outcome = run.search(
      "--budget time=200% --warm-up 4 --batches 2 --seeds 3 --steps 60 train.steps=20 --time-pairs 8 --rounds 1");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(unwrapped(outcome.output).find("within the budget"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("plan: budget of time: 200 % of 16 bits throughout\n"), std::string::npos);
  EXPECT_NE(outcome.output.find("Against bf16, 3 seeds of 20 steps"), std::string::npos)
      << "no more than the training has\n"
      << outcome.output;
  EXPECT_NE(outcome.output.find("steps in 1 round"), std::string::npos) << outcome.output;
  const nlohmann::json found = run.report();
  EXPECT_TRUE(found.at("meets_budget").get<bool>());
  EXPECT_EQ(found.at("places").size(), 11u + 3u) << "layers, moments and masters";
  EXPECT_EQ(found.at("validation").at("against").size(), 2u);
  EXPECT_NE(read_file(run.page_path()).find(found.at("verdict").dump()), std::string::npos)
      << "the page has the figures";
  const Outcome trained = run_program(0, {"train", run.plan_path(), "train.steps=6"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

TEST(PlanVerb, PlansForADeviceThatIsNotHere) {
  const PlanRun run("plan_verb_absent");
  const Outcome outcome =
      run.search("--hardware h100 --budget time=1% --warm-up 2 --batches 2 --seeds 0 --state wire --ranks 2");
  ASSERT_EQ(outcome.exit_code, 9) << "the budget is missed\n" << outcome.output;
  EXPECT_NE(outcome.output.find("cannot be met"), std::string::npos) << outcome.output;
  EXPECT_NE(read_file(run.plan_path()).find("cannot be met"), std::string::npos) << "it is written";
  const nlohmann::json found = run.report();
  EXPECT_FALSE(found.at("meets_budget").get<bool>());
  EXPECT_EQ(found.at("places").size(), 11u + 1u) << "layers and the wire";
  EXPECT_TRUE(found.at("choices").contains("comm.wire_dtype"));
}

TEST(PlanVerb, SaysWhatItTakesBeforeItBeginsAndAsksWhereThatIsMuch) {
  const PlanRun run("plan_verb_effort");
  const auto outcome_of = [&](const std::string& more) {
    return run.search("--hardware h100 --budget time=200% --warm-up 2 --batches 2 " + more);
  };
  const Outcome small = outcome_of("--seeds 0 --state none");
  EXPECT_EQ(small.exit_code, 0) << small.output;
  const size_t estimate = small.output.find("plan: about "), begin = small.output.find("steps in fp32");
  ASSERT_NE(estimate, std::string::npos) << small.output;
  EXPECT_LT(estimate, begin) << small.output;
  const Outcome much = outcome_of("--seeds 1000 --steps 100000000 train.steps=100000000");
  EXPECT_EQ(much.exit_code, 2) << much.output;
  EXPECT_NE(much.output.find("Go on with --yes"), std::string::npos) << much.output;
  EXPECT_NE(much.output.find("100 % for validation: --seeds, --steps"), std::string::npos) << much.output;
  const Outcome large = outcome_of("model.layers=4 model.width=32768 model.heads=128");
  EXPECT_EQ(large.exit_code, 8) << large.output;
  EXPECT_NE(large.output.find("memory are needed, and this machine has "), std::string::npos) << large.output;
  for (const Outcome& refused : {much, large}) {
    EXPECT_EQ(refused.output.find("steps in fp32"), std::string::npos) << "nothing was trained\n" << refused.output;
  }
}

// Statements are about the plan as a whole, and nothing in the table beside it is better.
TEST(PlanVerb, JudgesPlansAsAWhole) {
  const PlanRun run("plan_verb_whole");
  std::vector<std::string> budgets = {"memory=72%", "memory=86%"};
  if (every_case()) budgets = with(budgets, {"memory=78%", "memory=94%"});
  for (const std::string& budget : budgets) {
    const Outcome outcome = run.search(
        "--hardware h100 --recipes current,nvfp4 --warm-up 2 --batches 2 --seeds 0 train.recompute=selective "
        "--budget " +
        budget);
    const nlohmann::json found = run.report();
    ASSERT_EQ(outcome.exit_code, found.at("meets_budget").get<bool>() ? 0 : 9) << outcome.output;
    const auto bytes = found.at("plan").at("bytes").get<double>();
    const auto limit = found.at("budget").at("limit").get<double>() * (1.0 + 1e-9);
    EXPECT_EQ(found.at("meets_budget").get<bool>(), bytes <= limit) << outcome.output;
    for (const auto& uniform : found.at("uniform")) {
      const auto other = uniform.at("bytes").get<double>();
      if (bytes > limit) {
        EXPECT_GE(other, bytes) << budget << ": " << uniform;
      } else if (other <= limit) {
        const auto damage = found.at("plan").at("damage").get<double>(), its = uniform.at("damage").get<double>();
        EXPECT_GE(its + found.at("tolerance").get<double>(), damage) << budget;
        if (its <= damage) {
          EXPECT_GE(uniform.at("seconds").get<double>(), found.at("plan").at("seconds").get<double>()) << budget;
        }
      }
    }
  }
}

TEST(PlanVerb, AllocatesByAScoreOnRequest) {
  const PlanRun run("plan_verb_score");
  const auto allocated_by = [&](const std::string& more) {
    const Outcome outcome =
        run.search("--hardware h100 --budget time=99% --warm-up 2 --batches 2 --seeds 0 --state none " + more);
    const nlohmann::json found = run.report();
    EXPECT_EQ(outcome.exit_code, found.at("meets_budget").get<bool>() ? 0 : 9) << outcome.output;
    return found.at("allocated_by").get<std::string>();
  };
  EXPECT_EQ(allocated_by(""), "loss");
  EXPECT_EQ(allocated_by("--damage entropy"), "entropy");
}

// fp16 is no option if it overflows, even as a uniform precision. Settings that change the precision during training
// are not used in compared runs.
TEST(PlanVerb, PlansForModelsThatOverflowAndForTrainingsWithFallbacks) {
  const PlanRun run("plan_verb_odd");
  const auto succeeds = [&](const std::string& more) {
    const Outcome outcome = run.search(
        "--hardware h100 --budget loss=1 --recipes none --warm-up 0 --batches 2 precision.compute=fp16 " + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  succeeds("--seeds 0 model.init_stddev=10");
  const std::string output = succeeds("--seeds 3 --steps 6 precision.fallback.overflows=2 scaler.floor=lift");
  EXPECT_NE(output.find("Against fp16, 3 seeds of 6 steps"), std::string::npos) << output;
}

// Such settings do not apply to trials of plans on fp32 weights, nor to fp32 throughout without position embeddings.
TEST(PlanVerb, PlansForTrainingsThatSayHow16BitWeightsAreKept) {
  const PlanRun run("plan_verb_weights");
  const struct {
    std::string setting, value, position;
  } cases[] = {{"optimizer.weight_rounding", "stochastic", "rope"},
               {"optimizer.master", "kahan", "learned"},
               {"optimizer.master", "none_stochastic", "rope"}};
  for (const auto& [setting, value, position] : cases) {
    const Outcome outcome =
        run.search("--hardware h100 --budget loss=1 --warm-up 1 --batches 2 --seeds 0 --state moments " +
                   fmt::format("{}={} model.position={}", setting, value, position));
    EXPECT_EQ(outcome.exit_code, 0) << value << "\n" << outcome.output;
    const std::string line = fmt::format("  {}: {}\n", setting.substr(setting.find('.') + 1), value);
    EXPECT_NE(to_yaml(load_config(run.plan_path())).find(line), std::string::npos)
        << "the plan lowers weights, and keeps them so\n"
        << read_file(run.plan_path());
  }
}

TEST(PlanVerb, RefusesWhatMakesNoSense) {
  const SmallRun run("plan_verb_refused");
  const struct {
    std::vector<std::string> options;
    const char* message;
  } cases[] = {
      {{"--damage", "mi"}, "requires --budget"},
      {{"--budget", "time=1ms", "--solver", "knapsack"}, "advise: there is no option '--solver'"},
      {{"--budget", "time=1ms", "--compare-solvers"}, "advise: there is no option '--compare-solvers'"},
      {{"--budget", "time"}, "--budget: expected time=12ms"},
      {{"--budget", "energy=80%"}, "give --hardware with one of t4, v100"},
      {{"--budget", "time=1ms", "--damage", "luck"}, "--damage: expected one of loss, fisher, hessian, mi, entropy"},
      {{"--budget", "loss=1", "--damage", "mi"}, "--damage mi: expected a budget of time, memory or energy"},
      {{"--budget", "time=1ms", "--damage", "mi", "--state", "moments,masters,wire"},
       "--state moments,masters,wire: --damage mi is a score of layers"},
      {{"--budget", "time=1ms", "--recipes", "delayed"}, "--recipes: expected some of"},
      {{"--budget", "time=1ms", "--recipes", "current,current"}, "got 'current' and again"},
      {{"--budget", "time=1ms", "--seeds", "2"}, "--seeds: expected 0 or 3 to 1000, got 2"},
      {{"--budget", "time=1ms", "--time-pairs", "2"}, "--time-pairs: expected 0 or 8 to 1000, got 2"},
      {{"--budget", "time=1ms", "--state", "weights"}, "--state: expected some of moments, masters, wire, or none"},
      {{"--budget", "time=1ms", "--plan", run.folder() + "/no/such.yaml"}, "--plan"},
      {{"--budget", "time=1ms", "--json", run.folder() + "/plan.yaml"}, "expected two files, got one"},
      {{"--budget", "time=1ms", "--plan", run.config_path()}, "expected two files, got one"},
      {{"--budget", "time=1ms", "--json", run.config_path()}, "expected two files, got one"},
      {{"--budget", "time=1ms", "--hardware", "h101"}, "h101"},
      {{"--budget", "memory=1e300GiB"}, "got 'memory=1e300GiB'"},
      {{"--budget", "memory=150"}, "--budget: 150 bytes of memory are less than the "},
      {{"--budget", "time=1ms", "--hardware", "tpu-v3", "precision.compute=fp16"},
       "--hardware tpu-v3: expected units for fp16"},
      {{"--budget", "time=1ms", "--hardware", "gaudi2", "precision.compute=fp16"},
       "give precision.compute=bf16, or --hardware with one of t4, v100, a100, h100, h200, b200"},
  };
  for (const auto& [options, message] : cases) {
    std::vector<std::string> arguments = {"advise", run.config_path(), "--plan", run.folder() + "/plan.yaml"};
    if (options.size() > 2 && options[2] == "--plan") arguments.resize(2);
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("steps in fp32"), std::string::npos) << "nothing was trained\n" << outcome.output;
  }
}

}  // namespace
}  // namespace mantissa::testing
