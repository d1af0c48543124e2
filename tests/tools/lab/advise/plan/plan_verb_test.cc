// `mantissa advise --budget` as a user runs it.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/train/program.h"
#include "tools/config/config.h"

namespace mantissa::testing {
namespace {

TEST(PlanVerb, WritesAPlanThatTrains) {
  const SmallRun run("plan_verb");
  const std::string plan = run.folder() + "/plan.yaml", json = run.folder() + "/plan.json";
  const Outcome outcome = run_program(
      0, {"advise", run.config_path(), "--budget", "time=200%", "--warm-up", "4", "--batches", "2", "--seeds", "3",
          "--steps", "60", "--time-pairs", "8", "--plan", plan, "--json", json, "train.steps=20"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("within the budget"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("Against bf16, 3 seeds of 20 steps"), std::string::npos)
      << "no more than the training has\n"
      << outcome.output;
  const nlohmann::json found = nlohmann::json::parse(read_file(json));
  EXPECT_TRUE(found.at("meets_budget").get<bool>());
  EXPECT_EQ(found.at("places").size(), 11u + 3u) << "layers, moments and masters";
  EXPECT_EQ(found.at("validation").at("against").size(), 2u);
  const Outcome trained = run_program(0, {"train", plan, "train.steps=6"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

TEST(PlanVerb, PlansForADeviceThatIsNotHere) {
  const SmallRun run("plan_verb_absent");
  const std::string json = run.folder() + "/plan.json";
  const Outcome outcome = run_program(0, {"advise",     run.config_path(),
                                          "--hardware", "h100",
                                          "--budget",   "time=1%",
                                          "--warm-up",  "2",
                                          "--batches",  "2",
                                          "--seeds",    "0",
                                          "--state",    "wire",
                                          "--ranks",    "2",
                                          "--plan",     run.folder() + "/plan.yaml",
                                          "--json",     json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("cannot be met"), std::string::npos) << outcome.output;
  const nlohmann::json found = nlohmann::json::parse(read_file(json));
  EXPECT_FALSE(found.at("meets_budget").get<bool>());
  EXPECT_EQ(found.at("places").size(), 11u + 1u) << "layers and the wire";
  EXPECT_TRUE(found.at("choices").contains("comm.wire_dtype"));
}

// Of what is said the plan as a whole is meant, and nothing in the table beside it is better.
TEST(PlanVerb, JudgesPlansAsAWhole) {
  const SmallRun run("plan_verb_whole");
  for (const std::string budget : {"memory=72%", "memory=78%", "memory=86%", "memory=94%"}) {
    const std::string json = run.folder() + "/plan.json";
    const Outcome outcome =
        run_program(0, {"advise", run.config_path(), "--hardware", "h100", "--budget", budget, "--recipes",
                        "current,nvfp4", "--warm-up", "2", "--batches", "2", "--seeds", "0", "--plan",
                        run.folder() + "/plan.yaml", "--json", json, "train.recompute=selective"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const nlohmann::json found = nlohmann::json::parse(read_file(json));
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

// fp16 that overflows is no option, whatever is uniform; what changes the precision on the way plays no part in runs
// that are compared.
TEST(PlanVerb, PlansForModelsThatOverflowAndForTrainingsWithFallbacks) {
  const SmallRun run("plan_verb_odd");
  const std::vector<std::string> common = {
      "advise", run.config_path(), "--hardware", "h100",      "--budget", "loss=1", "--recipes",
      "none",   "--warm-up",       "0",          "--batches", "2",        "--plan", run.folder() + "/plan.yaml"};
  const auto succeeds = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  succeeds({"--seeds", "0", "precision.compute=fp16", "model.init_stddev=10"});
  const std::string output = succeeds({"--seeds", "3", "--steps", "6", "precision.compute=fp16",
                                       "precision.fallback.overflows=2", "scaler.floor=lift"});
  EXPECT_NE(output.find("Against fp16, 3 seeds of 6 steps"), std::string::npos) << output;
}

// Which trials of plans on fp32 weights have no use for, nor fp32 throughout where there are no positions to embed.
TEST(PlanVerb, PlansForTrainingsThatSayHow16BitWeightsAreKept) {
  const SmallRun run("plan_verb_weights");
  const struct {
    std::string setting, value, position;
  } cases[] = {{"optimizer.weight_rounding", "stochastic", "rope"},
               {"optimizer.master", "kahan", "learned"},
               {"optimizer.master", "none_stochastic", "rope"}};
  for (const auto& [setting, value, position] : cases) {
    const std::string plan = run.folder() + "/plan.yaml";
    const Outcome outcome = run_program(0, {"advise",
                                            run.config_path(),
                                            "--hardware",
                                            "h100",
                                            "--budget",
                                            "loss=1",
                                            "--solver",
                                            "differentiable",
                                            "--warm-up",
                                            "1",
                                            "--batches",
                                            "2",
                                            "--seeds",
                                            "0",
                                            "--state",
                                            "moments",
                                            "--plan",
                                            plan,
                                            setting + "=" + value,
                                            "model.position=" + position});
    EXPECT_EQ(outcome.exit_code, 0) << value << "\n" << outcome.output;
    EXPECT_NE(to_yaml(load_config(plan)).find(fmt::format("  {}: {}\n", setting.substr(setting.find('.') + 1), value)),
              std::string::npos)
        << "the plan lowers weights, and keeps them so\n"
        << read_file(plan);
  }
}

TEST(PlanVerb, RefusesWhatMakesNoSense) {
  const SmallRun run("plan_verb_refused");
  const struct {
    std::vector<std::string> options;
    const char* message;
  } cases[] = {
      {{"--budget", "time"}, "--budget: expected time=12ms"},
      {{"--budget", "time=1ms", "--solver", "luck"}, "luck"},
      {{"--budget", "time=1ms", "--recipes", "delayed"}, "--recipes: expected some of"},
      {{"--budget", "time=1ms", "--recipes", "current,current"}, "is there twice"},
      {{"--budget", "time=1ms", "--solver", "enumeration"}, "give knapsack"},
      {{"--budget", "time=1ms", "--seeds", "2"}, "--seeds: expected 0 for no validation"},
      {{"--budget", "time=1ms", "--time-pairs", "2"}, "--time-pairs: expected 0 for none, or at least 8"},
      {{"--budget", "time=1ms", "--state", "weights"}, "--state: expected some of moments, masters, wire, or none"},
      {{"--budget", "time=1ms", "--plan", run.folder() + "/no/such.yaml"}, "--plan"},
      {{"--budget", "time=1ms", "--json", run.folder() + "/plan.yaml"}, "expected two files, got one"},
      {{"--budget", "time=1ms", "--plan", run.config_path()}, "expected two files, got one"},
      {{"--json", run.config_path()}, "expected two files, got one"},
      {{"--budget", "time=1ms", "--hardware", "h101"}, "h101"},
      {{"--budget", "memory=1e300GiB"}, "got 'memory=1e300GiB'"},
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
