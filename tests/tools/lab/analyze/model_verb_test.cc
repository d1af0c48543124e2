// `mantissa analyze model` as a user runs it.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/quant/exponent_histogram.h"
#include "tests/program/program.h"
#include "tests/tools/lab/analyze/page_fixtures.h"
#include "tests/tools/probe/probe_rows.h"
#include "tests/tools/run/page_browser.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_file(path)); }

// Everything in a folder, with size and time.
std::map<std::string, std::pair<uintmax_t, std::filesystem::file_time_type>> contents(const std::string& folder) {
  std::map<std::string, std::pair<uintmax_t, std::filesystem::file_time_type>> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const bool is_file = entry.is_regular_file();
    found[entry.path()] = {is_file ? entry.file_size() : 0, entry.last_write_time()};
  }
  return found;
}

class ModelVerb : public ::testing::TestWithParam<int> {};

TEST_P(ModelVerb, AnalysesARunFromItsFirstWeightsAndItsCheckpoint) {
  const int ranks = GetParam();
  const SmallRun run(fmt::format("analyze_run_{}", ranks));
  run.train(ranks, {"train.steps=20", "train.stop_at_step=10", "precision.recipe=current"});
  const auto before = contents(run.run_dir());
  const std::string json = run.folder() + "/report.json", html = run.folder() + "/report.html";
  const Outcome outcome =
      run_program(ranks, {"analyze", "model", run.run_dir(), "--batches", "3", "--json", json, "--html", html});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(contents(run.run_dir()), before) << "the run is left as it was";
  EXPECT_NE(outcome.output.find("early: weights of step 0, 3 batches"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("late: weights of step 10, 3 batches"), std::string::npos);
  EXPECT_NE(outcome.output.find("blocks.1.mlp.down"), std::string::npos);
  EXPECT_NE(unwrapped(outcome.output).find("SNR compares with the same operands before the recipe rounds them"),
            std::string::npos);

  const nlohmann::json report = read_json(json);
  EXPECT_EQ(report.at("setting").at("ranks"), ranks);
  ASSERT_EQ(report.at("checkpoints").size(), 2u);
  const nlohmann::json& late = report.at("checkpoints")[1];
  EXPECT_EQ(late.at("steps"), (std::vector<int>{11, 12, 13}));
  EXPECT_EQ(late.at("products").size(), 9u * 3u);
  EXPECT_EQ(late.at("wire").empty(), ranks == 1);
  EXPECT_LT(late.at("loss").get<double>(), report.at("checkpoints")[0].at("loss").get<double>());
  const std::vector<Page> pages = {{.html = read_file(html)}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kModelPanels));
  EXPECT_EQ(visited.facts[0].at("small_texts"), nlohmann::json::array());
  EXPECT_EQ(visited.facts[0].at("cut_texts"), nlohmann::json::array());
  for (const std::string& id : kModelPanels) {
    const bool has_figures = id != "wire" || ranks > 1;
    EXPECT_EQ(panel(visited.facts[0], id).at("absent").empty(), has_figures) << id;
  }
  const std::string layers = panel(visited.facts[0], "layers").at("text");
  EXPECT_NE(layers.find("blocks.1.mlp.down"), std::string::npos) << layers;
}

INSTANTIATE_TEST_SUITE_P(OneAndTwo, ModelVerb, ::testing::Values(1, 2));

// By step: the gradients of activations that training's probes saw, and their fp16 losses at the current loss scale.
std::vector<FormatLosses> losses_in_fp16(const SmallRun& run) {
  const ProbeRows file(run.run_dir() + "/probes.mtp");
  const auto steps = file.integers("step");
  const auto roles = file.texts("role");
  const auto histograms = file.bytes("histogram");
  std::vector<FormatLosses> found(static_cast<size_t>(*std::max_element(steps.begin(), steps.end())));
  for (size_t row = 0; row < steps.size(); ++row) {
    if (roles[row] != "gradient" && roles[row] != "input gradient") continue;
    const FormatLosses one = format_losses(decode_histogram(histograms[row]), Format::kF16, 0);
    FormatLosses& step = found[static_cast<size_t>(steps[row] - 1)];
    step.elements += one.elements;
    step.underflowed += one.underflowed;
    step.overflowed += one.overflowed + one.non_finite;
  }
  return found;
}

// Trains on the analysed batches from the same weights with the recommended scale. Powers of two multiply fp32 numbers
// exactly, so each fp32 step has exactly the predicted counts. In fp16 the same scale never overflows.
TEST_P(ModelVerb, PredictsWhatTrainingWithTheRecommendedScaleLoses) {
  const int ranks = GetParam();
  const std::vector<std::string> common = {"comm.wire_dtype=fp32", "train.steps=20"};
  const SmallRun run(fmt::format("analyze_predicts_{}", ranks));
  const std::string json = run.folder() + "/report.json";
  const Outcome outcome = run_program(ranks, {"analyze", "model", run.config_path(), common[0], common[1],
                                              "precision.compute=fp16", "--batches", "6", "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const nlohmann::json recommended = read_json(json).at("checkpoints")[0].at("loss_scale").at("recommended");
  const auto scale = std::ldexp(1.0, recommended.at("exponent").get<int>());
  const auto predicted = recommended.at("underflow_by_step").get<std::vector<double>>();
  ASSERT_EQ(predicted.size(), 6u);

  for (const std::string compute : {"fp32", "fp16"}) {
    const SmallRun trained(fmt::format("analyze_predicted_{}_{}", compute, ranks));
    trained.train(ranks,
                  {common[0], common[1], "train.stop_at_step=6", "precision.compute=" + compute, "scaler.mode=static",
                   fmt::format("scaler.init_scale={}", scale), "probe.enabled=true", "probe.interval=1"});
    const auto records = trained.records("step");
    ASSERT_EQ(records.size(), 6u);
    for (const auto& step : records) EXPECT_FALSE(step.contains("skip_reason")) << step;
    const std::vector<FormatLosses> found = losses_in_fp16(trained);
    ASSERT_EQ(found.size(), predicted.size());
    FormatLosses all;
    for (size_t step = 0; step < found.size(); ++step) {
      EXPECT_EQ(found[step].overflowed, 0) << step;
      all.elements += found[step].elements;
      all.underflowed += found[step].underflowed;
      if (compute == "fp16") continue;
      EXPECT_EQ(found[step].share(found[step].underflowed), predicted[step]) << step;
      EXPECT_LE(found[step].share(found[step].underflowed), recommended.at("underflow_largest").get<double>());
    }
    if (compute == "fp16") continue;
    EXPECT_GT(all.underflowed, 0) << "nothing was compared";
    EXPECT_EQ(all.share(all.underflowed), recommended.at("underflow").get<double>());
  }
}

// With a late checkpoint, and for more steps than were analysed.
class RecommendedScale : public ::testing::TestWithParam<int> {};

TEST_P(RecommendedScale, NeverOverflowsInTraining) {
  const int ranks = GetParam();
  const SmallRun run(fmt::format("analyze_scale{}", ranks));
  const std::string json = run.folder() + "/report.json";
  const std::vector<std::string> fp16 = {"precision.compute=fp16", "train.steps=40"};
  const auto analyse = [&](const std::string& target) {
    const Outcome outcome =
        run_program(ranks, {"analyze", "model", target, fp16[0], fp16[1], "--batches", "6", "--json", json});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_json(json).at("checkpoints");
  };
  run.train(ranks, {fp16[0], fp16[1], "checkpoint.interval=40"});  // dynamic scale, for a late checkpoint
  int exponent = 100;
  for (const auto& point : analyse(run.run_dir())) {
    const nlohmann::json& recommended = point.at("loss_scale").at("recommended");
    EXPECT_EQ(recommended.at("overflow"), 0.0);
    exponent = std::min(exponent, recommended.at("exponent").get<int>());
  }
  const SmallRun scaled(fmt::format("analyze_scaled{}", ranks));
  scaled.train(ranks, {fp16[0], fp16[1], "scaler.mode=static", fmt::format("scaler.init_scale={}", 1LL << exponent),
                       fmt::format("scaler.max_scale={}", 1LL << exponent)});
  const auto steps = scaled.records("step");
  ASSERT_EQ(steps.size(), 40u);
  for (const auto& step : steps) EXPECT_FALSE(step.contains("skip_reason")) << step;
}

INSTANTIATE_TEST_SUITE_P(Ranks, RecommendedScale, ::testing::Values(1, 2));

// Without a loss scale fp16 loses gradients before a probe sees them.
TEST(AnalyzeModel, SeesWhatFp16Loses) {
  const SmallRun run("analyze_fp16");
  const auto verdict = [&](const std::string& scale) {
    const std::string json = run.folder() + "/report.json";
    const Outcome outcome =
        run_program(0, {"analyze", "model", run.config_path(), "precision.compute=fp16", "scaler.mode=static",
                        "scaler.min_scale=0.001", "scaler.init_scale=" + scale, "--batches", "2", "--json", json});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_json(json).at("verdict").dump();
  };
  EXPECT_NE(verdict("0.015625").find("gradients that become 0"), std::string::npos);
  EXPECT_EQ(verdict("65536").find("gradients that become 0"), std::string::npos);
}

// The run's settings together with others that its user did not have.
TEST(AnalyzeModel, TakesARunWithAnotherPrecision) {
  const SmallRun run("analyze_other");
  run.train(1,
            {"train.steps=2", "optimizer.warmup_steps=1", "precision.recipe=delayed", "precision.delayed.history=16"});
  const auto analyse = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"analyze", "model", run.run_dir(), "--batches", "1"});
    return run_program(0, settings);
  };
  const Outcome other = analyse({"precision.recipe=mxfp8"});
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_NE(other.output.find("precision.recipe: delayed -> mxfp8"), std::string::npos) << other.output;
  // The bf16 run was trained without a loss scale.
  const Outcome fp16 = analyse({"precision.compute=fp16"});
  EXPECT_EQ(fp16.exit_code, 0) << fp16.output;
  EXPECT_NE(fp16.output.find("in mode 'none' and is in 'dynamic' now"), std::string::npos) << fp16.output;
}

// One rank gathers nothing, so training would reject the setting.
TEST(AnalyzeModel, TakesARunWhoseWeightsWereGatheredInEightBits) {
  const SmallRun run("analyze_gathered");
  const Outcome outcome = run_program(
      0, {"analyze", "model", run.config_path(), "precision.recipe=delayed", "comm.gather=fp8", "--batches", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

// A cosine schedule to 0 has ended: with a learning rate of 0 there would be no updates to examine.
TEST(AnalyzeModel, LooksAtUpdatesOfAFinishedRun) {
  const SmallRun run("analyze_finished");
  run.train(1, {"train.steps=8", "optimizer.final_lr=0"});
  const std::string json = run.folder() + "/report.json";
  const Outcome outcome = run_program(0, {"analyze", "model", run.run_dir(), "--batches", "2", "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(unwrapped(outcome.output)
                .find("late (step 8): the learning rate of the schedule is 0 there, so these batches use"),
            std::string::npos)
      << outcome.output;
  const nlohmann::json points = read_json(json).at("checkpoints");
  EXPECT_TRUE(points[0].at("learning_rate_instead_of_0").is_null());
  const double last = run.records("step").back().at("lr").get<double>();
  EXPECT_GT(last, 0.0);
  EXPECT_DOUBLE_EQ(points[1].at("learning_rate_instead_of_0").get<double>(), last);
  int64_t updates = 0;
  for (const auto& one : points[1].at("tensors"))
    updates += one.at("role") == "update" && !one.at("stagnant").is_null();
  EXPECT_GT(updates, 0);
}

// The schedule has one step left, and three are examined.
TEST(AnalyzeModel, LooksAtUpdatesOfARunThatIsNearlyFinished) {
  const SmallRun run("analyze_nearly_finished");
  run.train(1, {"train.steps=8", "optimizer.final_lr=0", "train.stop_at_step=7"});
  const std::string json = run.folder() + "/report.json";
  const Outcome outcome = run_program(0, {"analyze", "model", run.run_dir(), "--batches", "3", "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(
      outcome.output.find("late (step 7): the learning rate of the schedule is 0 from step 9 on, so those batches use"),
      std::string::npos)
      << outcome.output;
  const nlohmann::json points = read_json(json).at("checkpoints");
  EXPECT_TRUE(points[0].at("learning_rate_instead_of_0_from_step").is_null());
  EXPECT_EQ(points[1].at("learning_rate_instead_of_0_from_step"), 9);
  int64_t updates = 0;
  for (const auto& one : points[1].at("tensors")) {
    if (one.at("role") != "update") continue;
    ++updates;
    EXPECT_EQ(one.at("amax_by_step").size(), 3u) << one.at("layer");
  }
  EXPECT_GT(updates, 0);
}

TEST(AnalyzeModel, TakesThePercentileAndTheHeadroomOfTheLossScale) {
  const SmallRun run("analyze_options");
  const std::string json = run.folder() + "/report.json";
  const auto recommended = [&](const std::string& percentile, const std::string& headroom) {
    const Outcome outcome = run_program(0, {"analyze", "model", run.config_path(), "--batches", "1", "--json", json,
                                            "--percentile", percentile, "--headroom", headroom});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_json(json).at("checkpoints")[0].at("loss_scale").at("recommended");
  };
  const auto usual = recommended("100", "16"), close = recommended("100", "1"), inner = recommended("99.5", "1");
  EXPECT_EQ(close.at("exponent").get<int>(), usual.at("exponent").get<int>() + 4);
  EXPECT_GT(inner.at("exponent").get<int>(), close.at("exponent").get<int>());
  EXPECT_EQ(inner.at("percentile"), 99.5);
  EXPECT_EQ(inner.at("headroom"), 1.0);
  EXPECT_GT(inner.at("overflow").get<double>(), 0.0) << "half a per cent is outside";
  for (const auto& [option, value] :
       std::map<std::string, std::vector<std::string>>{{"--percentile", {"0", "-1", "100.5", "nan"}},
                                                       {"--headroom", {"0", "-2", "inf", "nan", "1e300", "1e-300"}}}) {
    for (const std::string& wrong : value) {
      const Outcome refused = run_program(0, {"analyze", "model", run.config_path(), option, wrong});
      EXPECT_EQ(refused.exit_code, 2) << option << " " << wrong;
      EXPECT_NE(refused.output.find(option + ": expected a"), std::string::npos) << refused.output;
    }
  }
}

TEST(AnalyzeModel, RefusesWhatIsNeitherAConfigurationNorARun) {
  const SmallRun run("analyze_refuses");
  EXPECT_EQ(run_program(0, {"analyze", "model", run.folder() + "/nothing.yaml"}).exit_code, 2);
  const Outcome empty = run_program(0, {"analyze", "model", run.folder()});
  EXPECT_EQ(empty.exit_code, 4) << empty.output;
  write_file(run.folder() + "/kept.html", "kept");
  const Outcome refused =
      run_program(0, {"analyze", "model", run.config_path(), "model.heads=5", "--html", run.folder() + "/kept.html"});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_EQ(read_file(run.folder() + "/kept.html"), "kept") << "an older report stays until there is a new one";
  const Outcome page = run_program(0, {"analyze", "model", run.config_path(), "--html", "/nowhere/page.html"});
  EXPECT_EQ(page.exit_code, 2) << page.output;
  EXPECT_NE(page.output.find("--html: /nowhere/page.html: expected a file that can be written"), std::string::npos);
}

// Rejects it before computing anything: the report of a complete analysis is missing.
TEST(AnalyzeModel, RefusesAFolderAsAFileAtOnce) {
  const SmallRun run("analyze_folder");
  for (const std::string option : {"--html", "--json"}) {
    const Outcome outcome =
        run_program(0, {"analyze", "model", run.config_path(), "--batches", "1", option, run.folder()});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(
                  fmt::format("{}: {}: expected a file that can be written, got a folder", option, run.folder())),
              std::string::npos)
        << outcome.output;
    EXPECT_EQ(outcome.output.find("early: weights of step 0"), std::string::npos) << outcome.output;
  }
}

TEST(AnalyzeModel, RefusesOneFileForBothReportsAtOnce) {
  const SmallRun run("analyze_one_file");
  const std::string folder = run.folder();
  std::filesystem::create_directory(folder + "/sub");
  const std::string config = read_file(run.config_path());
  write_file(folder + "/kept", "kept");
  std::filesystem::create_symlink(folder + "/kept", folder + "/link");
  const std::pair<std::string, std::string> same[] = {{"/new", "/new"},         {"/new", "/sub/../new"},
                                                      {"/kept", "/./kept"},     {"/kept", "/link"},
                                                      {"/new", "/config.yaml"}, {"/sub/../text.txt", "/new"}};
  for (const auto& [json, html] : same) {
    const Outcome outcome = run_program(
        0, {"analyze", "model", run.config_path(), "--batches", "1", "--json", folder + json, "--html", folder + html});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("expected two files, got one"), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("early: weights of step 0"), std::string::npos) << outcome.output;
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/new"));
  EXPECT_EQ(read_file(folder + "/kept"), "kept");
  EXPECT_EQ(read_file(run.config_path()), config);
}

TEST(AnalyzeModel, WritesToWhatIsNoFileAsItIs) {
  const SmallRun run("analyze_device");
  const std::string link = run.folder() + "/link";
  std::filesystem::create_symlink("/dev/stdout", link);  // here a pipe
  const Outcome outcome = run_program(0, {"analyze", "model", run.config_path(), "--batches", "1", "--json", link});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("\"checkpoints\": ["), std::string::npos) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

}  // namespace
}  // namespace mantissa::testing
