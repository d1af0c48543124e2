// The pages of `mantissa analyze model` and `analyze formats` in a browser: every panel shows its figures or says why
// it has none.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/tools/lab/analyze/page_fixtures.h"
#include "tests/tools/run/page_browser.h"
#include "tools/lab/analyze/analyze_verbs.h"
#include "tools/run/report/report.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

// Sums `count` over the records of a list at all checkpoints.
size_t total(const json& analysis, const char* list, const std::function<size_t(const json&)>& count) {
  size_t sum = 0;
  for (const json& checkpoint : analysis.at("checkpoints")) {
    if (!checkpoint.contains(list) || !checkpoint.at(list).is_array()) continue;
    for (const json& record : checkpoint.at(list)) sum += count(record);
  }
  return sum;
}

size_t numbers(const json& list) {
  size_t count = 0;
  for (const json& value : list) count += value.is_number() && std::isfinite(value.get<double>());
  return count;
}

void expect_absent(const json& page, const std::string& id, const std::string& reason) {
  const json& shown = panel(page, id);
  ASSERT_EQ(shown.at("absent").size(), 1u) << id;
  EXPECT_NE(shown.at("absent")[0].get<std::string>().find(reason), std::string::npos) << shown.at("absent");
  EXPECT_EQ(shown.at("marks"), 0u) << id;
}

TEST(ModelPage, DrawsEveryFigureLegibly) {
  const json analysis = small_analysis();
  for (const json& page : legible_views("model", page_document(kModelPage, analysis), kModelPanels)) {
    EXPECT_EQ(page.at("heading"), analysis.at("title"));
    EXPECT_NE(page.at("setting").get<std::string>().find("gpt: 4 layers"), std::string::npos);
    for (const std::string& id : kModelPanels) {
      EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
      EXPECT_EQ(panel(page, id).at("legend") == "", id == "verdict") << id;
    }
    const std::string verdict = panel(page, "verdict").at("text");
    EXPECT_NE(verdict.find("Attention"), std::string::npos);
    for (const json& line : analysis.at("verdict").at("lines")) EXPECT_NE(verdict.find(line), std::string::npos);

    EXPECT_EQ(panel(page, "layers").at("rows"), 16u * 2);
    size_t bars = 0;  // of the first tensor at both checkpoints
    for (const json& checkpoint : analysis.at("checkpoints")) {
      for (const json& count : checkpoint.at("tensors")[0].at("histogram").at("counts")) bars += count != 0;
    }
    EXPECT_EQ(panel(page, "histograms").at("marks"), bars);
    EXPECT_GE(panel(page, "histograms").at("bands"), 2u * 5);
    EXPECT_EQ(panel(page, "drift").at("marks"), total(analysis, "tensors", [](const json&) { return 1u; }));
    EXPECT_EQ(panel(page, "drift").at("facets"), 5u);  // one per role
    EXPECT_EQ(panel(page, "snr").at("marks"), 3u * 16 * 2 * 8);
    EXPECT_EQ(panel(page, "snr").at("unknown"), 0u);
    EXPECT_EQ(panel(page, "stagnation").at("marks"), 3u * 16 * 2);
    EXPECT_EQ(panel(page, "underflow").at("marks"), 2u * 37 * 2);
    EXPECT_NE(panel(page, "underflow").at("text").get<std::string>().find("32,768"), std::string::npos);
    EXPECT_EQ(panel(page, "noise").at("marks"), 16u * 2);
    EXPECT_EQ(panel(page, "wire").at("marks"), 2u * 16 * 2);
  }
}

TEST(ModelPage, BearsHundredsOfLayersHostileNamesAndMissingFigures) {
  const json analysis = nasty_analysis();
  const std::string html = page_document(kModelPage, analysis);
  const std::vector<Page> pages = {{.html = html, .width_px = 1280}, {.html = html, .width_px = 400}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kModelPanels));
  for (const json& page : visited.facts) {
    EXPECT_EQ(page.at("heading"), kHostileTitle);
    EXPECT_EQ(page.at("smuggled"), nullptr);
    EXPECT_EQ(page.at("foreign"), 0) << "a name became an element";
    const json& layers = panel(page, "layers");
    EXPECT_EQ(layers.at("rows"), 200u * 2);  // products name every layer at both checkpoints
    EXPECT_EQ(layers.at("names")[0], kHostileLayer);
    EXPECT_EQ(layers.at("names")[4], "not UTF-8: \xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(panel(page, "drift").at("marks"), total(analysis, "tensors", [](const json& tensor) {
                return size_t{numbers(tensor.at("amax_by_step")) > 0};
              }));
    EXPECT_EQ(panel(page, "snr").at("marks"),
              total(analysis, "products", [](const json& product) { return numbers(product.at("snr_db")); }));
    EXPECT_GT(panel(page, "snr").at("unknown"), 0u);
    EXPECT_EQ(panel(page, "stagnation").at("marks"), total(analysis, "tensors", [](const json& tensor) {
                return tensor.contains("stagnant") ? tensor.at("stagnant").size() : 0;
              }));
    expect_absent(page, "underflow", "computes in bf16");
    expect_absent(page, "noise", "saw 1");
    expect_absent(page, "wire", "one rank");
  }
}

TEST(ModelPage, SaysWhyPanelsAreEmpty) {
  const json fp32 = {{"setting", {{"compute", "fp32"}, {"recipe", "none"}, {"wire", "fp32"}, {"ranks", 2}}},
                     {"verdict", {{"level", "good"}, {"lines", json::array()}}},
                     {"checkpoints", {{{"name", "early"}, {"tensors", json::array()}, {"wire", json::array()}}}}};
  const std::vector<Page> pages = {{.html = page_document(kModelPage, fp32)},
                                   {.html = page_document(kModelPage, json())},
                                   {.html = page_document(kModelPage, json::object())},
                                   {.html = page_document(kModelPage, {{"checkpoints", nullptr}, {"formats", 3}})}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kModelPanels));
  const json& page = visited.facts[0];
  EXPECT_NE(panel(page, "verdict").at("text").get<std::string>().find("Good"), std::string::npos);
  expect_absent(page, "layers", "No tensor");
  expect_absent(page, "snr", "computes in fp32");
  expect_absent(page, "underflow", "computes in fp32");
  expect_absent(page, "wire", "in fp32");
  for (size_t i = 1; i < pages.size(); ++i) {
    for (const std::string& id : kModelPanels) expect_absent(visited.facts[i], id, "");
  }
}

TEST(ModelPage, FiltersByRoleLayerAndCheckpoint) {
  const std::string html = page_document(kModelPage, small_analysis());
  const std::vector<Page> pages = {{.html = html,
                                    .width_px = 1280,
                                    .actions = {{"#filter-role", "weight"},
                                                {"#filter-text", "Blocks.1.MLP"},
                                                {"#filter-checkpoint", "1"},
                                                {"#layers-view", "tensor"}}},
                                   {.html = html, .width_px = 400, .actions = {{"#filter-text", "no such layer"}}}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kModelPanels));
  const json& page = visited.facts[0];
  EXPECT_EQ(page.at("result"), "2 of 16 layers");
  EXPECT_EQ(panel(page, "layers").at("names"), json({"blocks.1.mlp.up", "blocks.1.mlp.down"}));
  EXPECT_EQ(panel(page, "histograms").at("facets"), 1u);
  EXPECT_EQ(panel(page, "drift").at("marks"), 2u);
  EXPECT_EQ(panel(page, "snr").at("marks"), 3u * 2 * 8);
  EXPECT_EQ(panel(page, "stagnation").at("marks"), 3u * 2);
  EXPECT_EQ(panel(page, "underflow").at("facets"), 1u);
  EXPECT_EQ(panel(page, "noise").at("marks"), 2u);
  EXPECT_EQ(panel(page, "wire").at("marks"), 2u * 2);
  for (const char* id : {"layers", "histograms", "drift", "snr", "stagnation", "noise", "wire"}) {
    expect_absent(visited.facts[1], id, "The filters leave no");
  }
}

TEST(ModelPage, SortsTheTableByAColumn) {
  json analysis = small_analysis();
  analysis["checkpoints"].erase(1);
  json& tensors = analysis["checkpoints"][0]["tensors"];  // five per layer; the first is an activation
  tensors[5 * 6]["underflow"] = 0.5;                      // of blocks.1.mlp.up
  tensors[5 * 7]["underflow"] = nullptr;                  // of blocks.1.mlp.down
  const Action sort = {"#layers th:nth-child(7) button", ""};
  Page descending = {.html = page_document(kModelPage, analysis),
                     .actions = {{"#layers-view", "tensor"}, {"#filter-role", "activation"}, sort}};
  Page ascending = descending;
  ascending.actions.push_back(sort);
  descending.actions.push_back({"#layers td.layer button", ""});  // the first layer's name
  const Visit visited = visit({descending, ascending});
  const json& down = panel(visited.facts[0], "layers");
  const json& up = panel(visited.facts[1], "layers");
  EXPECT_EQ(down.at("columns")[6], "Underflow");
  ASSERT_EQ(down.at("names").size(), 16u);
  EXPECT_EQ(down.at("names")[0], "blocks.1.mlp.up");
  EXPECT_EQ(panel(visited.facts[0], "histograms").at("chosen")[0], "activation: blocks.1.mlp.up");
  EXPECT_EQ(up.at("names")[14], "blocks.1.mlp.up");
  EXPECT_EQ(down.at("names")[15], "blocks.1.mlp.down");  // it has no number, so it is last both ways
  EXPECT_EQ(up.at("names")[15], "blocks.1.mlp.down");
}

TEST(ModelPage, OrdersRowsFromTheWorstOn) {
  json analysis = small_analysis();
  for (json& value : analysis["checkpoints"][1]["products"][3 * 9]["snr_db"])
    value = -3.0;  // fprop of blocks.2.attention.out
  const Visit visited = visit({{.html = page_document(kModelPage, analysis), .actions = {{"#filter-order", "worst"}}}});
  EXPECT_EQ(panel(visited.facts[0], "snr").at("rows_shown")[0], "blocks.2.attention.out");
}

const Strings kFormatsPanels = {"ranges", "format-error", "underflow", "gemm"};

TEST(FormatsPage, DrawsEveryPanelLegibly) {
  json figures = analyze_formats({.device = "cpu", .samples = 50, .products = false});
  for (const char* dtype : {"fp32", "bf16"}) {
    json products = json::array();
    for (const int size : {256, 255, 512, 2048})
      products.push_back({{"size", size}, {"flops", 1e11 / size}, {"share_of_peak", 0.9}});
    figures["gemm"].push_back({{"dtype", dtype}, {"products", products}});
  }
  for (const json& page : legible_views("formats", page_document(kFormatsPage, figures), kFormatsPanels)) {
    for (const std::string& id : kFormatsPanels) EXPECT_EQ(panel(page, id).at("absent"), json::array()) << id;
    EXPECT_EQ(panel(page, "ranges").at("rows"), 7u);
    EXPECT_EQ(panel(page, "format-error").at("marks"), 7u + 7 + 5) << "errors, ranges, errors with scales";
    EXPECT_EQ(panel(page, "underflow").at("facets"), 4u) << "fp16 and less";
    EXPECT_EQ(panel(page, "gemm").at("marks"), 2u + 2) << "the fastest, and lines by size";
  }
  const std::vector<Page> pages = {{.html = page_document(kFormatsPage, json())}};
  const Visit visited = visit(pages);
  ASSERT_TRUE(is_sound(visited, pages, kFormatsPanels));
  for (const std::string& id : kFormatsPanels) expect_absent(visited.facts[0], id, "");
}

// The checks above detect pages that violate them.
TEST(PageChecks, CatchWhatCannotBeRead) {
  std::string html = page_document(kModelPage, json());
  html.insert(html.find("</main>"), R"(
      <svg width="200" height="40">
        <text x="10" y="20">one</text><text x="20" y="22">two</text><circle cx="15" cy="16" r="4"></circle>
        <path class="curve" d="M100,10h50"></path><text x="120" y="14">three</text>
      </svg>
      <p style="color:#999">pale</p>
      <p style="width:5rem">hyphenated-but-incomprehensibilities</p>
      <div class="table" id="wide" style="width:9rem"><table><tr><td>the only column</td><td>another</td></tr></table></div>)");
  const json page = visit({{.html = html, .picture = "planted"}}).facts[0];
  EXPECT_EQ(page.at("overlaps"), json({"one / two", "one / circle null", "three / curve"}));
  EXPECT_EQ(page.at("faint"), json({"pale: 2.85"}));
  EXPECT_EQ(page.at("broken_words"), json({"hyphenated-but-incomprehensibilities"}));
  EXPECT_EQ(page.at("hidden_columns"), json({"wide"}));
  EXPECT_GT(page.at("picture"), 2.0);
  html.insert(html.find("</main>"), "<style>body > * { opacity: 0 }</style>");
  EXPECT_LT(visit({{.html = html, .picture = "empty"}}).facts[0].at("picture"), 1.1);
}

TEST(PageChecks, CatchMessagesRequestsAndPagesThatAreTooWide) {
  const std::string sound = page_document(kModelPage, small_analysis());
  std::string open = sound;  // without the policy that forbids requests
  const size_t policy = open.find("<meta http-equiv=\"Content-Security-Policy\"");
  ASSERT_NE(policy, std::string::npos);
  open.erase(policy, open.find('>', policy) + 1 - policy);
  const auto planted = [](std::string html, const std::string& what) {
    return Page{.html = html.insert(html.rfind("</main>"), what), .width_px = 400};
  };
  const Visit visited = visit({planted(sound, "<div style='width:500px'>wide</div>"),
                               planted(sound, "<script>console.warn('one warning')</script>"),
                               planted(sound, "<script>throw new Error('one error')</script>"),
                               planted(sound, "<img src='http://blocked.invalid/one.png'>"),
                               planted(open, "<img src='http://planted.invalid/one.png'>")});
  const auto mentions = [](const Strings& lines, const std::string& word) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const auto& line) { return line.find(word) != std::string::npos; });
  };
  EXPECT_GT(visited.facts.at(0).at("scroll_width"), 400);
  EXPECT_EQ(mentions(visited.console, "one warning"), 1);
  EXPECT_EQ(mentions(visited.console, "one error"), 1);
  EXPECT_GE(mentions(visited.console, "blocked.invalid"), 1);  // the policy reports what it forbids
  EXPECT_EQ(mentions(visited.requests, "blocked.invalid"), 0);
  EXPECT_EQ(mentions(visited.requests, "http://planted.invalid/one.png"), 1);
}

}  // namespace
}  // namespace mantissa::testing
