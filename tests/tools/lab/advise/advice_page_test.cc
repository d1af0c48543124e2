// In the page of `mantissa advise` every panel shows its figures or says why it has none, with a budget and without.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/run/page_browser.h"
#include "tools/lab/advise/advice.h"
#include "tools/run/report/report.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

const std::vector<std::string> kAdvicePanels = {"verdict", "table", "speed", "memory", "operations"};
const std::vector<std::string> kPlanPanels = {"verdict", "plans", "places", "front", "validation"};

json precision_at(const char* name, double seconds) {
  const json gemm = {{"phase", "backward"}, {"op", "gemm"}, {"format", "bf16"}, {"seconds", 0.6 * seconds}};
  const json norm = {{"phase", "forward"}, {"op", "layer_norm"}, {"format", nullptr}, {"seconds", 0.1 * seconds}};
  return {
      {"name", name},
      {"configured", seconds < 0.02},
      {"runs", "natively"},
      {"reason", "products in bf16 at 989 TFLOP/s, 14.8 times fp32's; 55 % of the step is products"},
      {"step_seconds", seconds},
      {"tokens_per_second", 1e5 / seconds},
      {"speedup", 0.05 / seconds},
      {"speedup_bound", 0.06 / seconds},
      {"joules", 30 * seconds},
      {"memory_bytes", {{"weights", 4 << 20}, {"gradients", 8 << 20}, {"activations", 3 << 20}, {"total", 15 << 20}}},
      {"ops", {gemm, norm}}};
}

json figures_of_advice() {
  return {
      {"model", "configs/recipes.yaml"},
      {"device", "NVIDIA H100 SXM 80 GB"},
      {"ranks", 8},
      {"tokens_per_step", 1024},
      {"verdict", "fastest on NVIDIA H100 SXM 80 GB: bf16\nThis is about speed alone."},
      {"precisions",
       {precision_at("bf16", 0.01), precision_at("mxfp8:attention_high", 0.03), precision_at("fp32", 0.05),
        json{{"name", "nvfp4"}, {"configured", false}, {"runs", "refused"}, {"reason", "100 inputs, blocks of 16"}}}}};
}

json whole_plan(const char* name, double seconds, double damage) {
  return {{"name", name},  {"seconds", seconds}, {"bytes", 1e7},     {"sent_bytes", 0.0},
          {"joules", 0.3}, {"fits", true},       {"damage", damage}, {"damage_error", 1e-5}};
}

json figures_of_plan() {
  json front = json::array();
  for (int i = 0; i < 20; ++i) front.push_back(whole_plan("plan", 0.01 + 0.002 * i, 1e-3 / (i + 1)));
  const json place = {
      {"name", "blocks.0.attention.qkv"},
      {"reason", "current in fprop: saves 0.174 ms (11.1 %) against fp32, costs 8.8e-07 nats (+-5e-07)"},
      {"options", json::array()}};
  const json against = {{"margin", 0.003},
                        {"loss", {{"pairs", 3}, {"mean", -1e-4}, {"interval", {{"low", -2e-4}, {"high", 1e-4}}}}},
                        {"loss_verdict", "inconclusive"},
                        {"log_time", {{"pairs", 8}, {"mean", -0.3}, {"interval", nullptr}}},
                        {"time_verdict", "better"}};
  return {
      {"model", "configs/recipes.yaml"},
      {"device", "NVIDIA H100 SXM 80 GB"},
      {"verdict", "The plan takes 12 ms a step.\nAgainst bf16: equal.\n"},
      {"budget", {{"kind", "time"}, {"limit", 0.012}, {"text", "12 ms"}}},
      {"uniform", {whole_plan("fp32", 0.05, 0.0), whole_plan("bf16", 0.03, 1e-3), whole_plan("current", 0.02, 2e-3)}},
      {"plan", whole_plan("plan", 0.012, 5e-4)},
      {"choices", {{"blocks.0.attention.qkv", "current in fprop"}}},
      {"places", {place}},
      {"front", front},
      {"validation", {{"seeds", 3}, {"steps", 200}, {"against", {{"bf16", against}, {"fp32", against}}}}}};
}

TEST(AdvicePage, DrawsEveryPanelLegibly) {
  for (const json& page : legible_views("advise", page_document(kAdvicePage, figures_of_advice()), kAdvicePanels)) {
    EXPECT_EQ(page.at("heading"), "configs/recipes.yaml");
    for (const std::string& id : kAdvicePanels) EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
    EXPECT_EQ(panel(page, "table").at("rows"), 4u);
    EXPECT_NE(panel(page, "table").at("text").get<std::string>().find("100 inputs, blocks of 16"), std::string::npos);
    EXPECT_EQ(panel(page, "speed").at("marks"), 3u * 2) << "time and energy of what runs";
    EXPECT_EQ(panel(page, "memory").at("marks"), 3u * 7);
    EXPECT_EQ(panel(page, "operations").at("marks"), 2u);
  }
}

TEST(AdvicePage, DrawsAPlanLegibly) {
  for (const json& page : legible_views("plan", page_document(kAdvicePage, figures_of_plan()), kPlanPanels)) {
    EXPECT_NE(page.at("setting").get<std::string>().find("time 12 ms"), std::string::npos) << page.at("setting");
    for (const std::string& id : kPlanPanels) EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
    EXPECT_EQ(panel(page, "plans").at("rows"), 4u);
    EXPECT_EQ(panel(page, "front").at("marks"), 20u + 4);
    EXPECT_NE(panel(page, "places").at("text").get<std::string>().find("saves 0.174 ms"), std::string::npos);
    EXPECT_EQ(panel(page, "validation").at("rows"), 2u);
  }
}

// The front is drawn over what the budget limits, and plans above it are said to be so.
TEST(AdvicePage, ShowsAPlanByItsBudget) {
  json figures = figures_of_plan();
  figures["budget"] = {{"kind", "memory"}, {"limit", 9e6}, {"text", "8.6 MiB"}};
  for (int i = 0; i < 20; ++i) figures["front"][i]["bytes"] = 1e7 + 1e5 * i;
  figures["uniform"][1]["budget"] = "broken by the runs: +0.0123 ±0.0040 nats";
  const std::vector<Page> pages = {{.html = page_document(kAdvicePage, figures)},
                                   {.html = page_document(kAdvicePage, figures_of_plan())}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kPlanPanels));
  const auto text = [&](size_t page, const char* id) {
    return panel(visited.facts[page], id).at("text").get<std::string>();
  };
  EXPECT_NE(text(0, "front").find("memory of a rank, MiB"), std::string::npos) << text(0, "front");
  EXPECT_NE(text(1, "front").find("time of a step, milliseconds"), std::string::npos) << text(1, "front");
  EXPECT_NE(text(0, "plans").find("broken by the runs: +0.0123 ±0.0040 nats"), std::string::npos) << text(0, "plans");
}

TEST(AdvicePage, SaysWhyPanelsAreEmpty) {
  const std::vector<Page> advice = {{.html = page_document(kAdvicePage, json())},
                                    {.html = page_document(kAdvicePage, {{"precisions", 3}})}};
  const std::vector<Page> plan = {
      {.html = page_document(kAdvicePage, {{"plan", json::object()}, {"places", nullptr}})}};
  for (const auto& [pages, panels] : {std::pair(advice, kAdvicePanels), std::pair(plan, kPlanPanels)}) {
    const Visit visited = visit(pages);
    ASSERT_TRUE(is_sound(visited, pages, panels));
    for (const json& page : visited.facts) {
      for (const std::string& id : panels)
        EXPECT_EQ(panel(page, id).at("absent").size(), id == "plans" ? 0u : 1u) << id;
    }
  }
}

}  // namespace
}  // namespace mantissa::testing
