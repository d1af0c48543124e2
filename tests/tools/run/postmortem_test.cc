// The report around the verdict: lost steps, missing or damaged boxes, text and page.
#include "tools/run/postmortem/postmortem.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/error.h"
#include "core/io/checkpoint_store.h"
#include "tests/program/program.h"
#include "tests/tools/run/box_file.h"
#include "tests/tools/run/page_browser.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

const std::vector<std::string> kPostmortemPanels = {"verdict", "ranks", "timeline", "events", "stacks"};
constexpr int kHangCode = static_cast<int>(ExitCode::kHang);

json report_on(const std::string& run, PostmortemRequest request = {}) {
  request.run = run;
  return examine(read_run_history(run, request.previous), request);
}

std::string text_of(const std::string& run, PostmortemRequest request = {}) {
  const int64_t events = request.events;
  return postmortem_text(report_on(run, std::move(request)), events);
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(unwrapped(text).find(part), std::string::npos) << part << "\n--- in\n" << text;
}

void save(const std::string& run, int64_t step) {
  CheckpointStore store(run + "/checkpoints", {.warn = [](const std::string& text) { FAIL() << text; }});
  store.begin(step);
  store.commit(step, "model", {}, json::object());
}

TEST(Postmortem, CountsTheStepsThatWereLost) {
  const std::string run = fresh_folder("lost");
  using Kind = BlackBoxEvent::Kind;
  BoxFile(0, 1)
      .done(100, 20)
      .event(Kind::kSaved, 1000, 20, "checkpoint")
      .done(752000, 56)
      .phase(752001, 57, "data")
      .write(run);
  EXPECT_EQ(report_on(run).at("lost"),
            "lost: 56 steps, there is no checkpoint (0:12:32 of work); a new start begins with the first step");
  save(run, 20);
  EXPECT_EQ(report_on(run).at("lost"),
            "lost: 36 steps since the checkpoint of step 20 (0:12:31 of work); a new start continues after step 20");
  save(run, 55);
  save(run, 10);  // the run started again from an older one
  expect_says(report_on(run).at("lost"), "lost: 46 steps since the checkpoint of step 10");
  save(run, 56);
  EXPECT_EQ(report_on(run).at("lost"),
            "lost: no step, the last checkpoint is of step 56; a new start continues after step 56");
  for (const int step : {10, 56}) {
    write_file(fmt::format("{}/checkpoints/step-{:08}/manifest.json", run, step), "torn");
  }
  expect_says(report_on(run).at("lost"),
              "there is no checkpoint (0:12:32 of work); none of the checkpoints can be read");
}

TEST(Postmortem, StartsAreKeptApart) {
  const std::string run = fresh_folder("starts");
  BoxFile(0, 2).done(90, 4).ends(100, 3, "the first start").write(run, ".previous.box");
  BoxFile(1, 2).ends(100, 0).write(run);  // this start has one rank
  BoxFile(0, 1).started(200).ends(300, 3, "the second start").write(run);
  const std::string text = text_of(run);
  expect_says(text, "rank 0 failed at the start: the second start");
  expect_says(text, "left out: 1 black box of an earlier start with more ranks, the first is rank-0001.box");
  EXPECT_EQ(report_on(run).at("ranks").size(), 1u);
  const std::string previous = text_of(run, {.run = "", .previous = true});
  expect_says(previous, "rank 0 failed first between phases of step 4: the first start");
  expect_says(previous, "no black box of rank 1");
}

// A box that cannot be replaced answers for its own start only.
TEST(Postmortem, ABoxOfTheStartBeforeIsNotTheNewest) {
  const std::string run = fresh_folder("old_box");
  BoxFile(0, 1).done(90, 30).ends(100, 0).write(run);
  RunFigures figures;
  const auto begin = [&](int64_t start_ms, int64_t heartbeat_ms) {
    figures.set("start", 1e-9 * static_cast<double>(BoxFile::at(start_ms)));
    figures.set("heartbeat", 1e-9 * static_cast<double>(BoxFile::at(heartbeat_ms)));
    write_file(run + "/metrics.prom", to_prometheus(figures));
  };
  begin(10, 99);
  EXPECT_EQ(text_of(run).find("done: exit code 0"), 0u) << "it is of this start";
  begin(20'000, 30'000);
  EXPECT_THROW(read_run_history(run, false), ConfigError);
  EXPECT_EQ(postmortem_verb({.run = run}), 2);
  EXPECT_EQ(text_of(run, {.run = "", .previous = true}).find("done: exit code 0"), 0u);
  begin(20'000, 15'000);
  EXPECT_EQ(text_of(run).find("done: exit code 0"), 0u) << "the clock went back: nothing is known";
}

TEST(Postmortem, TakesBoxesOfNodesWhoseClocksDiffer) {
  const std::string run = fresh_folder("clocks");
  constexpr int64_t kBehind = -3'600'000;
  BoxFile near(0, 2), far(1, 2);
  far.on("b").started(kBehind);
  for (int number = 1; number <= 4; ++number) {
    near.passes(10 * number, 2, number);
    far.passes(10 * number + kBehind, 2, number);
  }
  near.ends(60, 6, "[mpi] echo").write(run);
  far.ends(50 + kBehind, 3, "own error").write(run);
  const std::string text = text_of(run);
  expect_says(text, "rank 1 failed first between phases of step 2: own error");
  expect_says(text, "rank 0, +0.010 s: [mpi] echo");
  expect_says(text, "the clock of node b is 3600.0 s behind that of node a: its times are corrected");
  EXPECT_EQ(text.find("left out"), std::string::npos) << "it is of this start\n" << text;
}

TEST(Postmortem, NamesBoxesThatAreMissingOrDamaged) {
  const std::string run = fresh_folder("damaged");
  const auto verb = [&](PostmortemRequest request) {
    request.run = request.run.empty() ? run : request.run;
    return postmortem_verb(request);
  };
  EXPECT_EQ(verb({}), 2) << "no box";
  EXPECT_EQ(verb({.run = run + "/no/folder"}), 2);
  EXPECT_THROW(read_run_history(run, false), ConfigError);
  BoxFile(0, 4).ends(100, 3, "own error").write(run);
  BoxFile(1, 4).ends(101, 6, "[mpi] echo").write(run);
  BoxFile(2, 4).write(run);
  const std::string cut = BlackBox::path(run + "/black_box", 2);
  EXPECT_EQ(verb({}), 0) << "only a missing one";
  std::filesystem::resize_file(cut, 5000);
  EXPECT_EQ(verb({.run = "", .html = run + "/page.html"}), 3);
  EXPECT_TRUE(std::filesystem::exists(run + "/page.html")) << "the others are reported";
  const std::string text = text_of(run);
  expect_says(text, "rank 0 failed first at the start: own error");
  expect_says(text, "rank 1, +0.001 s: [mpi] echo");
  expect_says(text, "rank-0002.box' is cut off");
  expect_says(text, "no black box of rank 3");
  write_file(cut, "no box at all");
  expect_says(text_of(run), "rank-0002.box' is not a black box");
  BoxFile(7, 8).write(run);
  std::filesystem::rename(BlackBox::path(run + "/black_box", 7), cut);
  expect_says(text_of(run), "it says that it is of rank 7 of 8");
  for (const int rank : {0, 1}) write_file(BlackBox::path(run + "/black_box", rank), "");
  EXPECT_EQ(verb({}), 3);
  expect_says(text_of(run), "no black box of this run can be read");
}

TEST(Postmortem, ShowsTwoRanksOfALargeJob) {
  const std::string run = fresh_folder("large");
  for (int rank = 0; rank < 12; ++rank) {
    BoxFile box(rank, 12);
    for (int number = 1; number <= 20; ++number) box.passes(number, 3, number, "all_gather");
    if (rank != 5) box.waits(30, 3, 21).ends(9000, kHangCode, "watchdog: x");
    box.write(run);
  }
  json report = report_on(run);
  ASSERT_EQ(report.at("shown").size(), 2u);
  EXPECT_EQ(report.at("shown")[0].at("rank"), 0);
  EXPECT_EQ(report.at("shown")[1].at("rank"), 5);
  EXPECT_EQ(report.at("ranks").size(), 12u);
  const std::string text = text_of(run, {.run = "", .events = 3});
  expect_says(text, "10 other ranks: `--rank R` shows the events of rank R");
  expect_says(text, "ranks 0, 1, 2, 3, 4, 6, 7, 8 and 3 others waited for it in collective 21 (node_barrier)");
  expect_says(text, "step 3: the end of collective 20 (all_gather)");
  EXPECT_EQ(text.find("collective 18 "), std::string::npos) << "three events of each rank\n" << text;
  report = report_on(run, {.run = "", .ranks = {11}});
  ASSERT_EQ(report.at("shown").size(), 1u);
  EXPECT_EQ(report.at("shown")[0].at("rank"), 11);
  EXPECT_THROW(report_on(run, {.run = "", .ranks = {12}}), ConfigError);
}

// An error that tries to become markup, and to command a terminal.
constexpr const char* kHostile = "<img src=x onerror='smuggled=1'></script><b>\x1b[2J\x07 \xff end";

std::string hostile_run() {
  std::string run = fresh_folder("hostile");
  BoxFile(0, 2)
      .passes(10, 1, 1)
      .phase(20, 1, "<b>phase</b>")
      .waits(30, 1, 2, "<i>wait</i>")
      .ends(9000, kHangCode, std::string("watchdog: ") + kHostile)
      .write(run);
  BoxFile(1, 2)
      .on("<b>node")
      .passes(10, 1, 1)
      .phase(20, 1, "forward")
      .event(BlackBoxEvent::Kind::kSkipped, 25, 1, "<b>n\x1b")
      .write(run);
  std::filesystem::create_directories(run + "/watchdog");
  write_file(run + "/watchdog/stacks-rank-0000.txt", "<b>frame</b>\n");
  return run;
}

TEST(Postmortem, TextIsNarrowAndCommandsNoTerminal) {
  const std::string text = text_of(hostile_run());
  for (const char c : text) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool has_path = line.find('/') != std::string::npos;  // may be long
    EXPECT_TRUE(has_path || line.size() <= 120) << line;
  }
  EXPECT_EQ(text.find("the job ended at step 1: rank 1 (node <b>node, process 71) stopped answering"), 0u) << text;
  expect_says(text, "stacks-rank-0000.txt");
}

TEST(PostmortemPage, DrawsEveryPanelAndTakesNoTextForMarkup) {
  const std::string run = hostile_run(), bare = fresh_folder("bare");
  BoxFile(0, 1).write(bare);
  json report = report_on(run);  // with names that are not longer than a line
  report["title"] = "runs/a_run_with_a_rather_long_name";
  report["stacks"][0]["path"] = "runs/a_run_with_a_rather_long_name/watchdog/stacks-rank-0000.txt";
  for (const json& page : legible_views("postmortem", postmortem_page(report), kPostmortemPanels)) {
    EXPECT_EQ(page.at("smuggled"), nullptr);
    EXPECT_EQ(panel(page, "ranks").at("rows"), 2u);
    EXPECT_EQ(panel(page, "events").at("rows"), 4u + 4u);
    EXPECT_EQ(panel(page, "timeline").at("marks"), 2u * 2 + 1) << "a phase and a collective each, and one that waits";
    expect_says(panel(page, "verdict").at("text"), "<img src=x onerror='smuggled=1'></script><b>");
    expect_says(panel(page, "stacks").at("text"), "<b>frame</b>");
  }
  const std::vector<Page> pages = {{.html = postmortem_page(report_on(bare))}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kPostmortemPanels));
  for (const char* id : {"timeline", "stacks"}) {
    EXPECT_EQ(panel(visited.facts[0], id).at("absent").size(), 1u) << id;
  }
}

}  // namespace
}  // namespace mantissa::testing
