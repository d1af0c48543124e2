// In the page of `mantissa analyze sensitivity` every panel shows its figures or says why it has none.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/run/page_browser.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"
#include "tools/run/report/report.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

const std::vector<std::string> kSensitivityPanels = {"verdict", "effects",      "risks",     "scores",
                                                     "layers",  "correlations", "parameters"};

json mean_of(double mean, double half_width) { return {{"mean", mean}, {"half_width", half_width}}; }

json decision(const std::string& layer, const char* product, const char* format, double loss, double risk) {
  return {{"name", layer + " " + product + " " + format},
          {"layer", layer},
          {"op", "linear"},
          {"product", product},
          {"format", format},
          {"loss", mean_of(loss, 2e-4)},
          {"loss_magnitude", mean_of(std::abs(loss), 2e-4)},
          {"update_loss", mean_of(loss / 3, 1e-6)},
          {"gradient_change", mean_of(0.01, 1e-3)},
          {"parameter_change", mean_of(0.02, 1e-3)},
          {"fisher", mean_of(1e-7, 2e-9)},
          {"hessian", mean_of(-1e-5, 1e-4)},
          {"entropy_bits", mean_of(2.0, 0.1)},
          {"information_bits", mean_of(3.0, 0.1)},
          {"overflow", risk / 10},
          {"underflow", risk / 2},
          {"precision_loss", risk},
          {"band", product != std::string("fprop") ? "unrated"
                   : risk > 0.1                    ? "fp32"
                                                   : "low"}};
}

json figures_of_sensitivity() {
  json decisions = {
      {{"name", "head fprop mxfp8"}, {"format", "mxfp8"}, {"refusal", "100 inputs do not go into blocks"}}};
  for (const char* layer : {"blocks.0.attention.qkv", "blocks.0.mlp.down", "blocks.11.attention.out", "head"}) {
    for (const char* product : {"fprop", "dgrad", "wgrad"}) {
      decisions.push_back(decision(layer, product, "current", 1e-3, 0.004));
      decisions.push_back(decision(layer, product, "nvfp4", -2e-3, 0.3));
    }
  }
  decisions.push_back(decision("blocks.0.attention", "attention", "bf16", 1e-5, 0.0));
  for (const char* unknown : {"overflow", "underflow", "precision_loss", "band"}) decisions.back()[unknown] = nullptr;
  decisions.push_back(decision("blocks.0.mlp.up", "fprop", "fp16", 0.0, 0.02));
  decisions.back()["loss"] = mean_of(std::nan(""), std::nan(""));
  const json rank = {{"fisher", 1.0}, {"hessian", -0.52}, {"loss", nullptr}};
  return {{"target", "configs/a_configuration_with_a_long_name.yaml"},
          {"ranks", 2},
          {"step", 100},
          {"batches", 4},
          {"probes", 8},
          {"low_risk", nullptr},
          {"high_risk", nullptr},
          {"loss", mean_of(2.5, 0.01)},
          {"verdict", {"Most sensitive: head fprop nvfp4.", "By the share of elements at risk: 12 low, 13 fp32."}},
          {"decisions", decisions},
          {"layers", {{{"layer", "head"}, {"score", 2.5}, {"magnitude", 0.1}, {"variance", 1e-5}, {"change", 1e-3}}}},
          {"parameters",
           {{{"name", "token_embedding.weight"},
             {"elements", 16384},
             {"gradient_rms", mean_of(0.1, 0.01)},
             {"gradient_variance", nullptr},
             {"hessian_trace", mean_of(-3.0, 5.0)},
             {"hessian_diagonal", {-2.0, 7.31}}}}},
          {"rank_correlations", {{"fisher", rank}, {"hessian", rank}, {"loss", rank}}}};
}

TEST(SensitivityPage, DrawsEveryPanelLegibly) {
  const json figures = figures_of_sensitivity();
  for (const json& page : legible_views("sensitivity", page_document(kSensitivityPage, figures), kSensitivityPanels)) {
    EXPECT_EQ(page.at("heading"), figures.at("target"));
    for (const std::string& id : kSensitivityPanels) EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
    const std::string verdict = panel(page, "verdict").at("text");
    EXPECT_NE(verdict.find("Most sensitive: head fprop nvfp4."), std::string::npos);
    EXPECT_NE(verdict.find("Not tried: head fprop mxfp8: 100 inputs"), std::string::npos);
    EXPECT_EQ(panel(page, "effects").at("marks"), 25u + 26) << "one loss is not finite";
    EXPECT_EQ(panel(page, "effects").at("rows_shown")[0], "blocks.0.mlp.up fprop fp16") << "not finite: the worst";
    EXPECT_EQ(panel(page, "effects").at("rows_shown")[1], "blocks.0.attention.qkv fprop nvfp4");
    EXPECT_EQ(panel(page, "risks").at("marks"), 25u * 3) << "attention has no operands to sample";
    const std::string risks = panel(page, "risks").at("legend");
    EXPECT_NE(risks.find("bands as measured for each format"), std::string::npos) << risks;
    EXPECT_EQ(risks.find("below"), std::string::npos) << risks;
    EXPECT_EQ(panel(page, "scores").at("rows"), 26u);
    EXPECT_EQ(panel(page, "layers").at("rows"), 1u);
    EXPECT_EQ(panel(page, "correlations").at("rows"), 3u);
    EXPECT_EQ(panel(page, "parameters").at("rows"), 1u);
  }
}

TEST(SensitivityPage, SaysThatOneOverflowInFp16IsEnough) {
  json figures = figures_of_sensitivity();
  figures["low_risk"] = 0.05;
  figures["high_risk"] = 0.2;
  json others = figures;
  others["decisions"].erase(others["decisions"].size() - 1);
  const std::vector<Page> pages = {{.html = page_document(kSensitivityPage, figures)},
                                   {.html = page_document(kSensitivityPage, others)}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kSensitivityPanels));
  const auto says = [&](size_t page, const char* text) {
    return panel(visited.facts[page], "risks").at("legend").get<std::string>().find(text) != std::string::npos;
  };
  EXPECT_TRUE(says(0, "up to 20 %: mixed; above, or any overflow in fp16: fp32"));
  EXPECT_TRUE(says(1, "up to 20 %: mixed; above: fp32"));
}

TEST(SensitivityPage, SaysWhyPanelsAreEmpty) {
  const std::vector<Page> pages = {{.html = page_document(kSensitivityPage, json())},
                                   {.html = page_document(kSensitivityPage, {{"decisions", nullptr}, {"layers", 3}})}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kSensitivityPanels));
  for (const json& page : visited.facts) {
    for (const std::string& id : kSensitivityPanels) EXPECT_EQ(panel(page, id).at("absent").size(), 1u) << id;
  }
}

}  // namespace
}  // namespace mantissa::testing
