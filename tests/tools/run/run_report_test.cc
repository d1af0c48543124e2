// Figures of prepared runs, and the page that shows them.
#include "tools/run/report/run_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "tests/tools/run/page_browser.h"
#include "tests/tools/run/prepared_run.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

const std::vector<std::string> kRunPanels = {"verdict", "figures-table", "loss",     "gradients", "scale",  "speed",
                                             "memory",  "phases",        "settings", "events",    "scores", "samples"};

void write_config(const PreparedRun& run, const std::string& compute) {
  write_file(run.path + "/config.yaml",
             "model: {layers: 2, width: 32, heads: 2, context: 32}\ndata: {train: [text.txt]}\n"
             "train: {run_dir: '" +
                 run.path + "'}\nprecision: {compute: " + compute + "}\n");
}

// A whole run: 400 steps with skips, evaluations, memory, phases, a sample and a rollback.
void fill(PreparedRun& run, const std::string& compute, double validation) {
  run.add_steps(1, 400);
  for (const int64_t step : {0, 200, 400}) {
    run.add({{"event", "validation"}, {"step", step}, {"loss", step == 0 ? 5.5 : validation}});
  }
  const json bytes = {{"weights", 4 << 20},     {"gradients", 8 << 20}, {"masters", 8 << 20}, {"moments", 6 << 20},
                      {"activations", 3 << 20}, {"buffers", 1 << 20},   {"packed", 0}};
  run.add({{"event", "memory"}, {"step", 400}, {"predicted", bytes}, {"measured", bytes}});
  for (const int64_t step : {200, 400}) {
    run.add({{"event", "phases"},
             {"step", step},
             {"wall_seconds", 10.0},
             {"seconds", {{"forward", 3.0}, {"backward", 6.0}}}});
  }
  run.add({{"event", "rollback"}, {"step", 100}, {"cause", "3 spikes in a row"}});
  for (const int64_t step : {0, 400}) {
    run.add({{"event", "evaluation"}, {"name", "questions"}, {"step", step}, {"acc", step > 0 ? 0.75 : 0.5}});
  }
  run.add({{"event", "sample"}, {"step", 400}, {"prompt", "The "}, {"text", "first <b>line</b>\nsecond line"}});
  write_config(run, compute);
  run.beats(400, 400, RunProgress::kDone);
}

TEST(RunReport, ASpikeOfOneStepIsInTheBandOfItsPart) {
  PreparedRun run("parts");
  run.add_steps(1, 4000, 9.0);
  run.beats(4000, 4000, RunProgress::kDone);
  const json series = examine_runs({run.path}, PreparedRun::now()).at("runs").at(0).at("series");
  ASSERT_EQ(series.at("step").size(), kReportPoints);
  // Parts of five steps: the tenth is of steps 46 to 50.
  EXPECT_EQ(series.at("step").at(9), 48.0);
  EXPECT_EQ(series.at("tokens").at(9), 48000.0);
  double sum = 9.0;
  for (int step = 46; step < 50; ++step) sum += 1.0 + 4.0 * std::exp(-step / 100.0);
  const json& loss = series.at("loss");
  EXPECT_NEAR(loss.at("mean").at(9), sum / 5, 1e-4);
  EXPECT_EQ(loss.at("high").at(9), 9.0);
  EXPECT_NEAR(loss.at("low").at(9), 1.0 + 4.0 * std::exp(-0.49), 1e-4);
  EXPECT_EQ(series.at("mfu").at("mean").at(0), 0.4);
}

TEST(RunReport, TellsWhatMattersOfARun) {
  PreparedRun run("whole");
  fill(run, "fp16", 2.5);
  const json figures = examine_runs({run.path}, PreparedRun::now());
  const json& one = figures.at("runs").at(0);
  EXPECT_EQ(one.at("state"), "done");
  EXPECT_EQ(one.at("steps"), 400);
  EXPECT_EQ(one.at("skipped"), 10);
  ASSERT_EQ(one.at("causes").size(), 1u);
  EXPECT_EQ(one.at("causes")[0].at("cause"), "gradient blocks.*.mlp.up.weight[*] is Inf on rank *");
  EXPECT_EQ(one.at("causes")[0].at("count"), 10);
  EXPECT_EQ(one.at("causes")[0].at("last"), 380);
  EXPECT_EQ(one.at("validation"), json({{"first", 5.5}, {"last", 2.5}, {"best", 2.5}, {"best_step", 200}}));
  EXPECT_EQ(one.at("phases"), json({{"forward", 6.0}, {"backward", 12.0}, {"other", 2.0}}));
  EXPECT_EQ(one.at("events")[0].at("text"), "3 spikes in a row");
  ASSERT_EQ(one.at("scores").size(), 1u) << "the newest";
  EXPECT_EQ(one.at("scores")[0].at("acc"), 0.75);
  EXPECT_EQ(one.at("skips")[0].at("tokens"), 20000.0);
  EXPECT_EQ(figures.at("verdict").at("kind"), "attention") << "2.5 % of the steps were skipped";
  const auto has_setting = [&](const std::string& path) {
    return std::ranges::any_of(figures.at("settings").at("rows"),
                               [&](const json& row) { return row.at("setting") == path; });
  };
  EXPECT_TRUE(has_setting("model.width")) << "not at its default";
  EXPECT_FALSE(has_setting("optimizer.lr"));
}

TEST(RunReport, ComparesSettingsAndValidationLosses) {
  PreparedRun a("compared_a"), b("compared_b");
  fill(a, "bf16", 2.75);
  fill(b, "fp16", 2.5);
  const json figures = examine_runs({a.path, b.path}, PreparedRun::now());
  EXPECT_EQ(figures.at("verdict").at("line"),
            "2 done; the lowest validation loss is that of runs_compared_b: 2.5000 at step 200");
  EXPECT_EQ(figures.at("settings").at("rows"),
            json::array({{{"setting", "precision.compute"}, {"values", {"bf16", "fp16"}}}}));
  write_file(b.path + "/config.yaml", "model: {layers: many}\n");
  const json unreadable = examine_runs({a.path, b.path}, PreparedRun::now());
  EXPECT_TRUE(unreadable.at("settings").contains("reason"));
  EXPECT_TRUE(unreadable.at("verdict").at("line").get<std::string>().starts_with(
      "2 done; losses are not ranked: " + b.path + "/config.yaml"))
      << unreadable.at("verdict");
  std::filesystem::remove(b.path + "/config.yaml");
  EXPECT_EQ(examine_runs({a.path, b.path}, PreparedRun::now()).at("verdict").at("line"),
            "2 done; losses are not ranked: " + b.path + " cannot be read");
}

// Means over other tokens are no better or worse.
TEST(RunReport, RanksOnlyLossesOfTheSameTokens) {
  PreparedRun a("ranked_a"), b("ranked_b");
  fill(a, "bf16", 2.75);
  fill(b, "bf16", 2.5);
  const auto compared = [&](const std::string& one, const std::string& other) {
    write_file(a.path + "/config.yaml", one);
    write_file(b.path + "/config.yaml", other);
    return examine_runs({a.path, b.path}, PreparedRun::now()).at("verdict");
  };
  const std::string common = "data: {train: [text.txt]}\n", encoder = "model: {name: encoder}\n" + common,
                    own = "data: {train: [text.txt], validation: [one.txt]}\n";
  const struct {
    std::string one, other, differing;  // differing: empty if they are ranked
  } cases[] = {
      {common, "data: {format: tokens, train: [text.txt]}\n", "data.format"},
      {common, "data: {train: [other.txt]}\n", "data.train"},
      {common, "data: {train: [text.txt], validation_fraction: 0.1}\n", "data.validation_fraction"},
      {own, "data: {train: [text.txt], validation: [two.txt]}\n", "data.validation"},
      {own, "data: {train: [other.txt], validation: [one.txt]}\n", ""},
      {common, "data: {train: [text.txt], packing: documents}\n", "data.end_of_text, data.packing"},
      {encoder, "model: {name: encoder}\ndata: {train: [text.txt], mask_fraction: 0.3}\n", "data.mask_fraction"},
      {common, "data: {train: [text.txt], mask_fraction: 0.3}\n", ""},  // it has no effect
      {common, encoder, "data.mask_fraction, data.mask_token, model.name"},
  };
  const std::string not_ranked = "2 done; losses are not ranked: they are means over different tokens, as the runs ";
  for (const auto& [one, other, differing] : cases) {
    const auto line = compared(one, other).at("line").get<std::string>();
    if (differing.empty()) {
      EXPECT_TRUE(line.starts_with("2 done; the lowest validation loss is that of")) << line;
    } else {
      EXPECT_EQ(line, not_ranked + "differ in " + differing);
    }
  }
  const json longer = compared(common, "model: {context: 64}\n" + common);
  EXPECT_EQ(longer.at("details").back(), "model.context differs: more of it alone lowers a loss");
}

TEST(RunReport, NamesTellRunsApart) {
  const std::string folder = fresh_folder("report_names");
  std::vector<std::string> runs;
  for (const char* name : {"/one/run", "/two/run/"}) {
    std::filesystem::create_directories(folder + name);
    write_file(folder + name + "/lock", "");
    runs.push_back(folder + name);
  }
  const json figures = examine_runs(runs, PreparedRun::now());
  EXPECT_EQ(figures.at("runs")[0].at("name"), "one/run");
  EXPECT_EQ(figures.at("runs")[1].at("name"), "two/run");
  EXPECT_EQ(figures.at("verdict").at("kind"), "bad") << "dead before its first step";
}

TEST(RunReport, IsPrintedAndWritten) {
  PreparedRun run("printed");
  fill(run, "fp16", 2.5);
  const std::string page = run.path + "/report.html";
  const Outcome shown = run_program(1, {"report", run.path, "--html", page, "--json", run.path + "/report.json"});
  EXPECT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_TRUE(shown.output.starts_with("done: step 400 of 400")) << shown.output;
  EXPECT_NE(shown.output.find("400.0k  0:00:14"), std::string::npos) << shown.output;
  EXPECT_TRUE(read_file(page).starts_with("<!DOCTYPE html>"));
  EXPECT_EQ(json::parse(read_file(run.path + "/report.json")).at("runs").size(), 1u);
  EXPECT_EQ(run_program(1, {"report", run.path, "--json", run.path + "/metrics.jsonl"}).exit_code, 2);
  EXPECT_EQ(run_program(1, {"report", run.path + "/missing"}).exit_code, 2);
}

bool says(const json& panel, const std::string& text) {
  return panel.at("text").get<std::string>().find(text) != std::string::npos;
}

TEST(RunsPage, DrawsEveryPanelLegibly) {
  PreparedRun a("page_bf16"), b("page_fp16");
  fill(a, "bf16", 2.75);
  fill(b, "fp16", 2.5);
  const json figures = examine_runs({a.path, b.path}, PreparedRun::now());
  for (const json& page : legible_views("runs", run_report_page(figures), kRunPanels)) {
    for (const std::string& id : kRunPanels) EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
    EXPECT_TRUE(says(panel(page, "verdict"), "the lowest validation loss is that of runs_page_fp16"));
    EXPECT_EQ(panel(page, "figures-table").at("rows"), 2u);
    EXPECT_EQ(panel(page, "loss").at("marks"), 2u + 2) << "training and validation losses";
    EXPECT_EQ(panel(page, "gradients").at("marks"), 2u + 2);
    EXPECT_EQ(panel(page, "scale").at("marks"), 2u);
    EXPECT_EQ(panel(page, "scale").at("rows"), 2u) << "causes";
    EXPECT_EQ(panel(page, "speed").at("marks"), 2u + 2);
    EXPECT_EQ(panel(page, "memory").at("marks"), 4u * 7) << "predicted and measured, by category";
    EXPECT_EQ(panel(page, "phases").at("marks"), 2u * 3);
    EXPECT_TRUE(says(panel(page, "settings"), "precision.compute"));
    EXPECT_TRUE(says(panel(page, "events"), "3 spikes in a row"));
    EXPECT_TRUE(says(panel(page, "scores"), "0.75"));
    EXPECT_TRUE(says(panel(page, "samples"), "first <b>line</b>\nsecond line")) << "text stays text";
  }
}

TEST(RunsPage, CurvesGoByStepTokensOrHours) {
  PreparedRun run("page_axis");
  fill(run, "fp16", 2.5);
  const std::string html = run_report_page(examine_runs({run.path}, PreparedRun::now()));
  const std::vector<Page> pages = {{.html = html}, {.html = html, .actions = {{"#axis", "tokens"}}}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kRunPanels));
  EXPECT_TRUE(says(panel(visited.facts[0], "loss"), "400step"));
  EXPECT_TRUE(says(panel(visited.facts[1], "loss"), "400Ktokens")) << panel(visited.facts[1], "loss").at("text");
}

TEST(RunsPage, SaysWhyPanelsAreEmpty) {
  PreparedRun run("page_empty");
  run.beats(0, 100, RunProgress::kRunning);
  const std::vector<Page> pages = {{.html = run_report_page(examine_runs({run.path}, PreparedRun::now()))},
                                   {.html = run_report_page(json())},
                                   {.html = run_report_page({{"runs", 3}, {"verdict", nullptr}})}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kRunPanels));
  for (const char* id : {"loss", "scale", "memory", "phases", "settings", "events", "scores", "samples"}) {
    EXPECT_FALSE(panel(visited.facts[0], id).at("absent").empty()) << id;
  }
}

}  // namespace
}  // namespace mantissa::testing
