#include "tests/tools/run/page_browser.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "core/base/process.h"
#include "tests/program/program.h"
#include "tests/testing/every_case.h"
#include "tests/tools/run/browser.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

// The probe's functions with an expression to evaluate among them.
std::string probed(const std::string& expression) {
  return "(() => {" + read_file("tests/tools/run/page_probe.js") + "\nreturn " + expression + ";\n})()";
}

// Writes a file, given in base64, to the folder whose contents Bazel keeps.
void keep(const std::string& name, const std::string& base64) {
  const std::string outputs = environment_variable("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string file = (outputs.empty() ? fresh_folder("pictures") : outputs) + "/" + name;
  write_file(file + ".base64", base64);
  run_shell("base64 -d '" + file + ".base64' >'" + file + "' && rm '" + file + ".base64'");
}

// Takes a picture and keeps it. Reports the size of its file over the empty page's: drawn
// pixels do not pack as well.
double picture(Browser& browser, const Page& page) {
  const json size = browser.call("Page.getLayoutMetrics").at("cssContentSize");
  const auto take = [&]() -> std::string {
    return browser
        .call("Page.captureScreenshot",
              {{"captureBeyondViewport", true},
               {"optimizeForSpeed", true},
               {"clip", {{"x", 0}, {"y", 0}, {"width", page.width_px}, {"height", size.at("height")}, {"scale", 1}}}})
        .at("data");
  };
  const std::string data = take();
  keep(page.picture + ".png", data);
  browser.evaluate("document.body.style.visibility = 'hidden'");
  return static_cast<double>(data.size()) / static_cast<double>(take().size());
}

std::string text_of(const json& event) {
  const json& params = event.at("params");
  if (params.contains("args")) {
    std::string text;
    for (const json& argument : params.at("args")) text += argument.value("value", json()).dump();
    return text;
  }
  if (params.contains("entry")) return params.at("entry").value("text", "") + " " + params.at("entry").value("url", "");
  return params.at("exceptionDetails").dump();
}

void note(const std::vector<json>& events, Visit& visit) {
  std::map<std::string, std::string> requested;  // by the request's id
  for (const json& event : events) {
    const std::string method = event.value("method", "");
    if (method == "Runtime.consoleAPICalled" || method == "Runtime.exceptionThrown" || method == "Log.entryAdded") {
      visit.console.push_back(text_of(event));
    }
    if (!method.starts_with("Network.")) continue;
    const json& params = event.at("params");
    const std::string id = params.value("requestId", "");
    if (method == "Network.requestWillBeSent") requested[id] = params.at("request").at("url");
    if (params.value("blockedReason", "") == "csp") requested.erase(id);  // by the page's own policy: nothing was sent
  }
  for (const auto& [id, url] : requested) {
    if (!url.starts_with("file:")) visit.requests.push_back(url);
  }
}

void expect_one_colour_a_format(const json& keys, const std::string& view) {
  std::map<std::string, std::string> colour_of, format_of;
  for (const json& key : keys) {
    const std::string format = key.at(0), colour = key.at(1);
    if (format != "none") {
      EXPECT_EQ(colour_of.try_emplace(format, colour).first->second, colour) << view << ": " << format;
    }
    EXPECT_EQ(format_of.try_emplace(colour, format).first->second, format) << view << ": " << colour;
  }
}

void expect_legible(const json& facts, const Page& page) {
  const std::string& view = page.picture;
  for (const char* fact : {"small_texts", "cut_texts", "overlaps", "broken_words", "faint"}) {
    EXPECT_EQ(facts.at(fact), json::array()) << view << ": " << fact;
  }
  if (page.width_px >= 1280) {
    EXPECT_EQ(facts.at("hidden_columns"), json::array()) << view;
  }
  expect_one_colour_a_format(facts.at("keys"), view);
  const json& luminance = facts.at("paper");
  EXPECT_TRUE(page.dark ? luminance < 0.05 : luminance > 0.9) << view << ": the paper's luminance is " << luminance;
  EXPECT_GT(facts.at("picture"), 2.0) << view << " is empty";
}

}  // namespace

Visit visit(const std::vector<Page>& pages) {
  Visit result{.facts = std::vector<json>(pages.size())};
  const std::string file = fresh_folder("pages") + "/page.html";
  try {
    Browser& browser = Browser::shared();
    for (size_t i = 0; i < pages.size(); ++i) {
      const Page& page = pages[i];
      write_file(file, page.html);
      browser.call("Emulation.setDeviceMetricsOverride",
                   {{"width", page.width_px}, {"height", 900}, {"deviceScaleFactor", 1}, {"mobile", false}});
      browser.call("Emulation.setEmulatedMedia",
                   {{"features", {{{"name", "prefers-color-scheme"}, {"value", page.dark ? "dark" : "light"}}}}});
      browser.open(file);
      for (const auto& [selector, value] : page.actions) {
        browser.evaluate(
            probed("act(" + json(selector).dump() + (value.empty() ? "" : ", " + json(value).dump()) + ")"));
      }
      result.facts[i] = browser.evaluate(probed("facts()"));
      if (!page.picture.empty()) {
        result.facts[i].update(browser.evaluate(probed("legibility()")));
        result.facts[i]["picture"] = picture(browser, page);
      }
      note(browser.events(), result);
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return result;
}

bool is_sound(const Visit& visit, const std::vector<Page>& pages, const std::vector<std::string>& panels) {
  EXPECT_EQ(visit.console, std::vector<std::string>{});
  EXPECT_EQ(visit.requests, std::vector<std::string>{});
  for (size_t i = 0; i < pages.size(); ++i) {
    const json& page = visit.facts[i];
    if (!page.is_object()) {
      ADD_FAILURE() << "page " << i << " did not come to its end";
      return false;
    }
    EXPECT_EQ(page.at("width"), pages[i].width_px);
    EXPECT_LE(page.at("scroll_width"), pages[i].width_px) << "page " << i << " is wider than its window";
    EXPECT_EQ(page.at("foreign"), 0) << "a name became an element";
    std::vector<std::string> ids;
    for (const json& panel : page.at("panels")) {
      ids.push_back(panel.at("id"));
      for (const char* part : {"heading", "how", "text"}) EXPECT_NE(panel.at(part), "") << ids.back() << " " << part;
      EXPECT_EQ(panel.at("misplaced"), 0) << ids.back();
    }
    EXPECT_EQ(ids, panels);
  }
  return true;
}

std::vector<json> legible_views(const std::string& name, const std::string& html,
                                const std::vector<std::string>& panels) {
  std::vector<Page> pages;
  for (const int width_px : {1280, 500}) {
    for (const bool dark : {false, true}) {
      if ((width_px == 500) != dark && !every_case()) continue;
      pages.push_back({.html = html,
                       .width_px = width_px,
                       .dark = dark,
                       .picture = name + "-" + std::to_string(width_px) + (dark ? "-dark" : "-light")});
    }
  }
  const Visit visited = visit(pages);
  if (!is_sound(visited, pages, panels)) return {};
  for (size_t i = 0; i < pages.size(); ++i) expect_legible(visited.facts[i], pages[i]);
  return visited.facts;
}

const json& panel(const json& facts, const std::string& id) {
  static const json kNone = json::object();
  if (facts.is_object()) {
    for (const json& one : facts.at("panels")) {
      if (one.at("id") == id) return one;
    }
  }
  ADD_FAILURE() << "the page has no panel " << id;
  return kNone;
}

}  // namespace mantissa::testing
