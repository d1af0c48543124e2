// In the page of `mantissa compare` every panel shows its figures or says why it has none.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "tests/tools/lab/compare/comparison_panels.h"
#include "tests/tools/run/page_browser.h"
#include "tools/lab/compare/precision_comparison.h"
#include "tools/run/report/report.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

constexpr int kSeeds = 3, kSteps = 400;

json run(int seed, double offset, double scale) {
  json loss = json::array(), norm = json::array(), scales = json::array(), result = json::array(),
       seconds = json::array();
  for (int step = 0; step < kSteps; ++step) {
    const bool skips = scale > 1.0 && step == 3;
    loss.push_back(2.0 + 3.0 * std::exp(-step / 80.0) + 0.05 * std::sin(step * (seed + 1)) +
                   offset * (1.0 + 0.1 * seed));
    norm.push_back(skips ? json(nullptr) : json(1.0 + 0.3 * std::cos(step * (seed + 2))));
    scales.push_back(step <= 3 ? scale : std::max(1.0, scale / 2));
    result.push_back(skips ? "overflow" : "applied");
    seconds.push_back(0.01);
  }
  return {
      {"seed", seed},
      {"place", 0},
      {"failure", nullptr},
      {"final_loss", 2.1 + offset + 0.01 * seed},
      {"median_step_seconds", 0.01 * (1.0 + offset + 0.02 * seed)},
      {"tokens_per_second", 1e5},
      {"peak_memory_bytes", 30 << 20},
      {"memory",
       {{"weights", 4 << 20},
        {"gradients", 8 << 20},
        {"masters", 8 << 20},
        {"moments", 6 << 20},
        {"activations", 3 << 20},
        {"buffers", 1 << 20},
        {"packed", 0}}},
      {"sent_bytes", 6e6},
      {"validation", {{{"step", 0}, {"loss", 5.5}}, {{"step", kSteps}, {"loss", 2.1 + offset + 0.01 * seed}}}},
      {"steps", {{"loss", loss}, {"grad_norm", norm}, {"scale", scales}, {"result", result}, {"seconds", seconds}}}};
}

json mean_difference(double mean, double half) {
  return {
      {"pairs", kSeeds}, {"mean", mean}, {"stddev", half}, {"interval", {{"low", mean - half}, {"high", mean + half}}}};
}

json precision(const std::string& name, double offset, double scale, const std::string& verdict) {
  json runs = json::array();
  for (int seed = 1; seed <= kSeeds; ++seed) runs.push_back(run(seed, offset, scale));
  const double share = scale > 1.0 ? 1.0 / kSteps : 0.0;
  return {{"name", name},
          {"refusal", nullptr},
          {"config", ""},
          {"runs", runs},
          {"summary",
           {{"runs", kSeeds},
            {"succeeded", kSeeds},
            {"failure", nullptr},
            {"overflow_share", share},
            {"fault_share", 0.0},
            {"step_seconds", {{"mean", 0.0104}, {"low", 0.0102}, {"high", 0.0106}}},
            {"time_ratio", {{"mean", 0.8}, {"low", 0.79}, {"high", 0.81}}},
            {"tokens_per_second", 98461.5},
            {"final_loss", mean_difference(2.1 + offset, 0.02)},
            {"loss_difference", mean_difference(offset, 0.004)},
            {"verdict", verdict},
            {"grad_norm", 1.1},
            {"smallest_scale", std::max(1.0, scale / 2)},
            {"last_scale", std::max(1.0, scale / 2)},
            {"scale_changes", scale > 1.0 ? 1.0 : 0.0},
            {"peak_memory_bytes", 30 << 20},
            {"memory_ratio", 0.75},
            {"sent_bytes", 6e6}}}};
}

json error_rows(double error) {
  json rows = json::array();
  for (int decade = -8; decade <= 1; ++decade) {
    rows.push_back({{"decade", decade}, {"mean", decade < -5 && error > 1e-4 ? 1.0 : error}, {"max", 1.0}});
  }
  return rows;
}

json device_formats() {
  const auto format = [](const char* name, double max, double normal, double positive, double epsilon) {
    return json{{"name", name},
                {"range", {{"max", max}, {"min_normal", normal}, {"min_positive", positive}, {"epsilon", epsilon}}},
                {"errors", error_rows(epsilon / 4)}};
  };
  const auto rates = [](const char* dtype, double flops) {
    json products = json::array();
    for (const int size : {256, 255, 512, 511, 1024}) {
      products.push_back({{"size", size}, {"flops", flops * size / 1024}, {"share_of_peak", 0.8}});
    }
    return json{{"dtype", dtype}, {"peak_flops", flops * 1.25}, {"peak_source", "measured"}, {"products", products}};
  };
  return {{"device", "cpu"},
          {"samples", 1000},
          {"formats",
           {format("fp32", 3.4e38, 1.2e-38, 1.4e-45, 1.2e-7), format("fp16", 65504, 6.1e-5, 6e-8, 9.8e-4),
            json{{"name", "mxfp8"}, {"range", nullptr}, {"errors", error_rows(0.02)}}}},
          {"gemm", {rates("fp32", 9e10), rates("bf16", 1.6e11)}}};
}

json gradients() {
  json exponents = json::array(), underflow = json::array(), overflow = json::array();
  for (int exponent = -8; exponent <= 40; ++exponent) {
    exponents.push_back(exponent);
    underflow.push_back(std::erf(std::exp2(-9.0 - exponent)));
    overflow.push_back(std::erfc(std::exp2(20.0 - exponent)));
  }
  const json none = std::vector<double>(exponents.size(), 0.0);
  const auto format = [&](const char* name, const json& under, const json& over, int exponent, double lost) -> json {
    return {
        {"format", name},
        {"exponents", exponents},
        {"underflow", under},
        {"overflow", over},
        {"recommended",
         {{"exponent", exponent}, {"percentile", 100.0}, {"headroom", 16.0}, {"underflow", lost}, {"overflow", 0.0}}}};
  };
  return {{"steps", 8},
          {"elements", 1000000},
          {"formats", {format("fp16", underflow, overflow, 15, 1e-5), format("bf16", none, none, 0, 0.0)}}};
}

json small_comparison() {
  json refused = {
      {"name", "nvfp4"}, {"refusal", "blocks.0.mlp.up: 100 inputs do not go into blocks of 16"}, {"config", ""}};
  return {{"version", 1},
          {"title", "gpt_small.yaml"},
          {"setting",
           {{"model", "gpt: 2 layers, width 64, context 64"},
            {"device", "cpu: a processor"},
            {"ranks", 2},
            {"seeds", {1, 2, 3}},
            {"steps", kSteps},
            {"level", 0.95},
            {"margin", 0.01},
            {"margin_text", "0.25 % of what the baseline learns"}}},
          {"baseline", "fp32"},
          {"precisions",
           {precision("fp32", 0.0, 1.0, "equal"), precision("bf16", 0.002, 1.0, "equal"),
            precision("fp16", 0.03, 65536.0, "worse"), refused}},
          {"gradients", gradients()},
          {"device_formats", device_formats()}};
}

bool says(const json& panel, const std::string& text) {
  return panel.at("text").get<std::string>().find(text) != std::string::npos;
}

TEST(ComparisonPage, DrawsEveryPanelLegibly) {
  for (const json& page :
       legible_views("comparison", page_document(kComparisonPage, small_comparison()), kComparisonPanels)) {
    EXPECT_EQ(page.at("heading"), "gpt_small.yaml");
    EXPECT_NE(page.at("setting").get<std::string>().find("gpt: 2 layers"), std::string::npos);
    for (const std::string& id : kComparisonPanels) EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
    EXPECT_EQ(panel(page, "verdict").at("rows"), 4u);
    EXPECT_EQ(panel(page, "verdict").at("marks"), 2u) << "differences";
    EXPECT_TRUE(says(panel(page, "verdict"), "▼ worse"));
    EXPECT_TRUE(says(panel(page, "verdict"), "+0.0300 ±0.0040")) << panel(page, "verdict").at("text");
    EXPECT_TRUE(says(panel(page, "verdict"), "do not go into blocks of 16"));
    EXPECT_TRUE(says(panel(page, "figures-table"), "98,462"));
    EXPECT_EQ(panel(page, "curves").at("marks"), 3u + 2 + 3) << "losses, differences, validation";
    EXPECT_EQ(panel(page, "curves").at("bands"), 3u + 2 + 3) << "over seeds";
    EXPECT_EQ(panel(page, "success").at("facets"), 2u);
    EXPECT_TRUE(says(panel(page, "success"), "3 of 3"));
    EXPECT_EQ(panel(page, "scales").at("marks"), 1u + 3) << "one precision has a loss scale";
    EXPECT_EQ(panel(page, "cost").at("marks"), 3u + 3 * 7) << "times, and memory by category";
    EXPECT_EQ(panel(page, "saving").at("marks"), 2u * 2) << "memory and what is sent";
    EXPECT_EQ(panel(page, "format-error").at("marks"), 2u + 2 + 1);
    EXPECT_EQ(panel(page, "underflow").at("marks"), 2u * 2 * 49);
    EXPECT_TRUE(says(panel(page, "underflow"), "32,768"));
    EXPECT_TRUE(says(panel(page, "underflow"), "Nothing is lost without a scale."));
    EXPECT_EQ(panel(page, "gemm").at("marks"), 2u + 2) << "the fastest, and lines by size";
  }
}

TEST(ComparisonPage, ShowsRunsThatFailedAndHostileNames) {
  const std::string hostile = "<img src=x onerror='smuggled=1'></script><b>";
  json comparison = small_comparison();
  comparison["title"] = hostile;
  json& failed = comparison["precisions"][2];
  failed["name"] = hostile;
  failed["summary"]["succeeded"] = 0;
  failed["summary"]["failure"] = "stopped after 3 faults in a row, the last in step 3";
  failed["summary"]["fault_share"] = 1.0;
  for (const char* none : {"final_loss", "loss_difference", "grad_norm", "tokens_per_second"})
    failed["summary"][none] = nullptr;
  for (json& one : failed["runs"]) {
    one["failure"] = "stopped";
    one["final_loss"] = nullptr;
    one["validation"] = json::array();
    for (auto& [name, values] : one["steps"].items()) values.erase(values.begin() + 3, values.end());
    one["steps"]["loss"] = {nullptr, nullptr, nullptr};
    one["steps"]["grad_norm"] = {nullptr, nullptr, nullptr};
  }
  const std::vector<Page> pages = {{.html = page_document(kComparisonPage, comparison), .width_px = 1280}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kComparisonPanels));
  const json& page = visited.facts[0];
  EXPECT_EQ(page.at("heading"), hostile);
  EXPECT_EQ(page.at("smuggled"), nullptr);
  EXPECT_TRUE(says(panel(page, "verdict"), "3 of 3 runs failed: stopped after 3 faults in a row"));
  EXPECT_TRUE(says(panel(page, "success"), "0 of 3"));
  EXPECT_TRUE(says(panel(page, "success"), "100 % faults"));
}

TEST(ComparisonPage, PrintsDifferencesLikeTheTerminal) {
  json comparison = small_comparison();
  json& precisions = comparison["precisions"];
  precisions[1]["summary"]["outlier"] = {{"seed", 3}, {"text", "seed 3 stands apart"}};
  precisions[2]["summary"]["why"] = "too few seeds";
  precisions[2]["summary"]["outlier"] = {{"seed", 2}, {"text", "seed 2 stands apart"}};
  precisions[1]["summary"]["loss_difference"] = mean_difference(-1.3e-8, 6.4e-8);
  precisions[2]["summary"]["loss_difference"] = mean_difference(0.33259054, 2.7e-7);
  const std::vector<Page> pages = {{.html = page_document(kComparisonPage, comparison), .width_px = 1280}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kComparisonPanels));
  const json& verdicts = panel(visited.facts[0], "verdict");
  EXPECT_TRUE(says(verdicts, "−1.3e−8 ±6.4e−8")) << verdicts.at("text");
  EXPECT_TRUE(says(verdicts, "+0.33259 ±2.7e−7")) << verdicts.at("text");
  EXPECT_TRUE(says(verdicts, "bf16: seed 3 stands apart")) << verdicts.at("text");
  EXPECT_TRUE(says(verdicts, "fp16: too few seeds; seed 2 stands apart")) << verdicts.at("text");
}

TEST(ComparisonPage, SaysWhyPanelsAreEmpty) {
  json alone = small_comparison();
  alone["precisions"] = json::array({alone["precisions"][0]});
  alone.erase("gradients");
  alone.erase("device_formats");
  const std::vector<Page> pages = {
      {.html = page_document(kComparisonPage, alone)},
      {.html = page_document(kComparisonPage, json())},
      {.html = page_document(kComparisonPage, {{"precisions", nullptr}, {"gradients", 3}})}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kComparisonPanels));
  for (const char* id : {"saving", "underflow", "gemm", "format-error"}) {
    EXPECT_EQ(panel(visited.facts[0], id).at("absent").size(), 1u) << id;
  }
  for (const size_t empty : {1u, 2u}) {
    for (const std::string& id : kComparisonPanels)
      EXPECT_EQ(panel(visited.facts[empty], id).at("absent").size(), 1u) << id;
  }
}

}  // namespace
}  // namespace mantissa::testing
