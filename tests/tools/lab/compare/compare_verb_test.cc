// `mantissa compare` as a user runs it.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>

#include "tests/program/program.h"
#include "tests/tools/lab/compare/comparison_panels.h"
#include "tests/tools/run/page_browser.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/lab/compare/precision_comparison.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

const json& precision_of(const json& report, const std::string& name) {
  for (const json& one : report.at("precisions")) {
    if (one.at("name") == name) return one;
  }
  ADD_FAILURE() << "the report has no precision " << name;
  return report;
}

class CompareVerb : public ::testing::TestWithParam<int> {};

TEST_P(CompareVerb, TrainsEveryPrecisionWithEverySeed) {
  const int ranks = GetParam();
  const SmallRun small(fmt::format("compare_{}", ranks));
  const std::string path = small.folder() + "/report.json", html = small.folder() + "/report.html";
  std::vector<std::string> arguments = {"compare",
                                        small.config_path(),
                                        "train.eval_interval=4",
                                        "--precisions",
                                        "fp32,bf16",
                                        "--seeds",
                                        "2",
                                        "--steps",
                                        "8",
                                        "--json",
                                        path,
                                        "--html",
                                        html};
  const bool times_products = ranks == 1;  // takes seconds
  if (!times_products) arguments.push_back("--no-products");
  const Outcome outcome = run_program(ranks, arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("Verdict: final loss against fp32"), std::string::npos) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(small.run_dir())) << "nothing is written but the report";
  const json report = json::parse(read_file(path));
  EXPECT_EQ(report.at("setting").at("ranks"), ranks);
  EXPECT_EQ(report.at("setting").at("seeds"), json({1, 2}));
  EXPECT_EQ(report.at("baseline"), "fp32");
  ASSERT_EQ(report.at("precisions").size(), 2u);
  for (const json& one : report.at("precisions")) {
    ASSERT_EQ(one.at("runs").size(), 2u);
    EXPECT_EQ(one.at("summary").at("succeeded"), 2);
    for (const json& run : one.at("runs")) {
      EXPECT_EQ(run.at("steps").at("loss").size(), 8u);
      EXPECT_EQ(run.at("validation").size(), 3u);
      EXPECT_EQ(run.at("sent_bytes").get<double>() > 0.0, ranks > 1);
    }
    EXPECT_NE(one.at("runs")[0].at("steps").at("loss"), one.at("runs")[1].at("steps").at("loss")) << "other seeds";
  }
  // Every seed has another order.
  EXPECT_EQ(precision_of(report, "fp32").at("runs")[0].at("place"), 0);
  EXPECT_EQ(precision_of(report, "fp32").at("runs")[1].at("place"), 1);
  const json& bf16 = precision_of(report, "bf16").at("summary");
  EXPECT_EQ(bf16.at("loss_difference").at("pairs"), 2);
  EXPECT_LT(bf16.at("memory_ratio").get<double>(), 1.0);
  EXPECT_EQ(report.at("gradients").at("steps"), 8);
  EXPECT_EQ(report.at("gradients").at("formats")[0].at("format"), "fp16");
  EXPECT_EQ(report.at("device_formats").at("gemm").empty(), !times_products);
  const std::vector<Page> pages = {{.html = read_file(html)}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kComparisonPanels));
  const json& page = visited.facts[0];
  EXPECT_EQ(page.at("small_texts"), json::array());
  EXPECT_EQ(page.at("cut_texts"), json::array());
  for (const std::string& id : kComparisonPanels) {
    const bool has_figures = times_products || id != "gemm";
    EXPECT_EQ(panel(page, id).at("absent").empty(), has_figures) << id << panel(page, id).at("absent");
  }
}

// A run of a comparison equals the training by `mantissa train`, bit for bit.
TEST_P(CompareVerb, ItsRunsAreTrainings) {
  const int ranks = GetParam();
  const SmallRun small(fmt::format("compare_train_{}", ranks));
  const std::string path = small.folder() + "/report.json";
  const Outcome outcome =
      run_program(ranks, {"compare", small.config_path(), "train.eval_interval=20", "--precisions", "bf16,fp8",
                          "--seeds", "2", "--steps", "10", "--no-products", "--json", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const json report = json::parse(read_file(path));
  EXPECT_EQ(report.at("baseline"), "bf16") << "the first precision, because fp32 is not requested";
  EXPECT_NE(outcome.output.find("compare: 4 runs of 10 steps: precisions x seeds = 2 x 2"), std::string::npos);
  EXPECT_NE(outcome.output.find("for the rest, 3 runs, at the pace"), std::string::npos) << outcome.output;
  small.train(ranks, {"train.eval_interval=20", "train.steps=10", "train.seed=2", "precision.recipe=delayed"});
  const auto losses = small.losses();
  const json& found = precision_of(report, "fp8").at("runs")[1].at("steps").at("loss");
  ASSERT_EQ(found.size(), losses.size());
  for (const auto& [step, loss] : losses) EXPECT_EQ(found[static_cast<size_t>(step - 1)].get<double>(), loss) << step;
}

INSTANTIATE_TEST_SUITE_P(OneAndTwo, CompareVerb, ::testing::Values(1, 2));

TEST(CompareVerbOnce, ARunThatFailsAndAPrecisionThatIsRefusedAreResults) {
  const SmallRun small("compare_fails");
  const std::string plan = small.folder() + "/plan.yaml", path = small.folder() + "/report.json";
  write_file(plan, "precision: {rules: [{match: no.such.layer, format: fp32}]}\n");
  const Outcome outcome = run_program(
      0, {"compare", small.config_path(), "scaler.mode=static", "scaler.init_scale=1e30", "scaler.max_scale=1e30",
          "--precisions", "fp32,fp16,plan=" + plan, "--seeds", "2", "--steps", "6", "--no-products", "--json", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(unwrapped(outcome.output).find("fp16: 2 of 2 runs failed: stopped after 3 faults in a row"),
            std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("0/2"), std::string::npos);
  const json report = json::parse(read_file(path));
  EXPECT_EQ(precision_of(report, "fp16").at("summary").at("succeeded"), 0);
  EXPECT_EQ(precision_of(report, "fp16").at("summary").at("verdict"), "worse");
  EXPECT_NE(precision_of(report, "plan").at("refusal").get<std::string>().find("no.such.layer"), std::string::npos);
}

// It trains from the first weights: no checkpoint of the run counts, and another model is no error.
TEST(CompareVerbOnce, OfARunFolderShowsGradientsFromTheFirstWeights) {
  const SmallRun small("compare_run_folder");
  small.train(1, {"train.steps=6", "checkpoint.interval=2"});
  const std::string path = small.folder() + "/report.json";
  const auto gradients = [&](const std::string& target, const std::string& width) {
    const Outcome outcome = run_program(0, {"compare", target, width, "--precisions", "fp32,bf16", "--seeds", "1",
                                            "--steps", "6", "--no-products", "--json", path});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return json::parse(read_file(path)).at("gradients");
  };
  EXPECT_EQ(gradients(small.run_dir(), "model.width=32"), gradients(small.config_path(), "model.width=32"));
  EXPECT_NE(gradients(small.run_dir(), "model.width=64"), json());
}

TEST(CompareVerbOnce, APlanWithAUniformPrecisionIsThatPrecision) {
  const SmallRun small("compare_plan");
  const std::string plan = small.folder() + "/plan.yaml", path = small.folder() + "/report.json";
  write_file(plan, "precision: {compute: bf16, recipe: current}\n");
  const Outcome outcome =
      run_program(0, {"compare", small.config_path(), "--precisions", "current,plan=" + plan, "--seeds", "1", "--steps",
                      "6", "--baseline", "plan", "--no-products", "--json", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("one run cannot show how much results vary by chance"), std::string::npos)
      << outcome.output;
  const json report = json::parse(read_file(path));
  EXPECT_EQ(report.at("baseline"), "plan");
  EXPECT_EQ(precision_of(report, "plan").at("runs")[0].at("steps").at("loss"),
            precision_of(report, "current").at("runs")[0].at("steps").at("loss"));
}

TEST(CompareVerbOnce, TellsThatTheConfigurationsOwnPrecisionIsReplaced) {
  const SmallRun small("compare_replaces");
  const auto warns = [&](const std::string& precisions, const std::string& setting) {
    const Outcome outcome = run_program(0, {"compare", small.config_path(), "--precisions", precisions, "--seeds", "1",
                                            "--steps", "6", "--no-products", setting});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output.find("to compare these, too, add `configured`") != std::string::npos;
  };
  const std::string rules = "precision.rules=[{match: head, format: fp32}]";
  EXPECT_TRUE(warns("fp32,bf16", rules));
  EXPECT_FALSE(warns("fp32,configured", rules));
  EXPECT_FALSE(warns("fp32,bf16", "precision.recipe=none"));
}

// A pattern and a plan file are rated like a precision, on two ranks, with the energy of a device that is not here.
TEST(CompareVerbOnce, RatesWhatWasTrainedByWeights) {
  const SmallRun small("compare_utility");
  const std::string path = small.folder() + "/report.json", plan = small.folder() + "/plan.yaml";
  write_file(plan, "precision: {compute: bf16}\n");
  const Outcome outcome = run_program(
      2, {"compare", small.config_path(), "--precisions", "fp32,bf16:attention_high,plan=" + plan, "--seeds", "2",
          "--steps", "12", "--utility", "energy=1,memory=1", "--hardware", "a100", "--no-products", "--json", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("By memory=1,energy=1, "), std::string::npos) << outcome.output;
  const json utility = json::parse(read_file(path)).at("utility");
  ASSERT_EQ(utility.at("precisions").size(), 3u);
  EXPECT_EQ(utility.at("precisions")[1].at("name"), "bf16:attention_high");
  for (const json& one : utility.at("precisions")) {
    EXPECT_NEAR(one.at("utility").at("mean").get<double>(),
                -one.at("memory").get<double>() - one.at("energy").get<double>(), 1e-9);
  }
  const double pattern = utility.at("precisions")[1].at("energy"), plain = utility.at("precisions")[2].at("energy");
  EXPECT_LT(plain, pattern) << "16 bits everywhere take less energy than fp32 in attention";
  EXPECT_LT(pattern, 0.0);
  EXPECT_EQ(utility.at("winner"), "plan");
}

TEST(CompareVerbOnce, ShowsTheRoundingOfFp32AgainstFp64) {
  const SmallRun small("compare_fp64");
  const std::string path = small.folder() + "/report.json";
  const Outcome outcome =
      run_program(1, {"compare", small.config_path(), "optimizer.first_moment=8bit", "--precisions", "fp64,fp32",
                      "--baseline", "fp64", "--steps", "8", "--seeds", "1", "--no-products", "--json", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const json report = json::parse(read_file(path));
  const json &fp64 = precision_of(report, "fp64"), &fp32 = precision_of(report, "fp32");
  for (const json* one : {&fp64, &fp32}) EXPECT_EQ(one->at("summary").at("succeeded"), 1);
  EXPECT_NE(fp64.at("runs")[0].at("steps").at("loss"), fp32.at("runs")[0].at("steps").at("loss"));
  EXPECT_LT(fp32.at("summary").at("memory_ratio").get<double>(), 0.7);
}

TEST(CompareVerbOnce, RefusesWhatItCannotDo) {
  const SmallRun small("compare_refuses");
  const auto refusal = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"compare", small.config_path()});
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    return outcome.output;
  };
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& text) {
    const std::string output = refusal(arguments);
    EXPECT_NE(output.find(text), std::string::npos) << output;
  };
  const std::string file = small.folder() + "/one";
  expect({"--precisions", "fp32,fp7"}, "--precisions: expected some of fp64,fp32,");
  expect({"--precisions", "fp32,bf16", "--baseline", "fp16"}, "--baseline: expected one of the precisions fp32,bf16");
  expect({"--json", file, "--html", file}, "expected two files, got one");
  expect({"--html", small.config_path()}, "expected two files, got one");
  expect({"--json", small.data_path()}, "expected two files, got one");
  expect({"--json", small.folder()}, "got a folder");
  expect({"--margin", "-1"}, "--margin: expected nats above 0, such as 0.01, or per cent");
  expect({"--utility", "loss=1,speed=2"}, "--utility: expected weights of 0 or more");
  expect({"--utility", "energy=1"}, "--utility: energy is known for --hardware only");
  expect({"--utility", "energy=1", "--hardware", "h1000"}, "h1000");
  expect({"--precisions", "fp32,tf32", "--utility", "energy=1", "--hardware", "t4"},
         "--hardware t4: the energy of tf32 is not known");
  expect({"--seeds", "0"}, "--seeds");
  expect({"--precisions", "configured", "precision.rules=[{match: no.such.layer, format: fp32}]"},
         "configured, the baseline of the comparison, cannot be trained");
}

}  // namespace
}  // namespace mantissa::testing
