#include "tests/tools/lab/report/page_browser.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

constexpr const char* kProbe = "tests/tools/lab/report/page_probe.js";

// The page with the probe as its last script.
std::string probed(const Page& page) {
  std::string script = "<script>" + read_file(kProbe);
  for (const auto& [selector, value] : page.actions) {
    script += "act(" + json(selector).dump() + (value.empty() ? "" : ", " + json(value).dump()) + ");\n";
  }
  script += "parent.postMessage(facts(), '*');</script>\n";
  const size_t end = page.html.rfind("</body>");
  EXPECT_NE(end, std::string::npos);
  return std::string(page.html).insert(end, script);
}

// Uses frames, because a Chromium window is at least 500 px wide. <pre> collects the pages' facts, without characters
// that markup would escape.
std::string frames(const std::vector<Page>& pages) {
  std::string text = "<!DOCTYPE html><meta charset='utf-8'><pre></pre>\n";
  for (const Page& page : pages) {
    text += "<iframe style='border:0;height:900px;width:" + std::to_string(page.width_px) + "px'></iframe>\n";
  }
  return text + R"(<script>
const all = [...document.querySelectorAll("iframe")];
const facts = all.map(() => null);
addEventListener("message", (event) => {
  facts[all.findIndex((frame) => frame.contentWindow === event.source)] = event.data;
  document.querySelector("pre").textContent =
      JSON.stringify(facts).replace(/[<>&\u00a0]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
});
all.forEach((frame, index) => { frame.src = `page${index}.html`; });
</script>)";
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.find(before);
  if (begin == std::string::npos) return "";
  const size_t end = text.find(after, begin + before.size());
  return end == std::string::npos ? "" : text.substr(begin + before.size(), end - begin - before.size());
}

// Requests made for pages. Excludes the browser's own (its updates, for example) and connections opened in advance.
std::vector<std::string> requests_in(const json& log) {
  std::vector<std::string> found;
  for (const json& event : log.at("events")) {
    const json& params = event.value("params", json::object());
    const std::string url = params.value("url", "");
    if (url.empty() || url.starts_with("file:")) continue;
    if (params.contains("initiator") && params.at("initiator") != "not an origin") found.push_back(url);
  }
  return found;
}

}  // namespace

Visit visit(const std::vector<Page>& pages) {
  Visit result{.facts = std::vector<json>(pages.size())};
  if (run_shell("command -v chromium").exit_code != 0) {
    ADD_FAILURE() << "the program chromium, in which this test opens pages, is not installed: run tools/setup --tests";
    return result;
  }
  const std::string folder = fresh_folder("pages");
  for (size_t i = 0; i < pages.size(); ++i) {
    write_file(folder + "/page" + std::to_string(i) + ".html", probed(pages[i]));
  }
  write_file(folder + "/frames.html", frames(pages));
  // HOME, because Chromium writes there. Its sandbox does not work inside Bazel's; the pages are our own.
  const Outcome outcome = run_shell(
      "(cd '" + folder + "' && HOME=$PWD timeout 120 " +
      command_line("chromium",
                   {"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                    "--disable-background-networking", "--disable-component-update", "--disable-sync",
                    "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=profile", "--enable-logging=stderr",
                    "--log-net-log=net.json", "--virtual-time-budget=10000", "--dump-dom", "frames.html"}) +
      " >dom.html)");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  result.log = outcome.output;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(":CONSOLE") != std::string::npos) result.console.push_back(line);
  }
  const json log = json::parse(read_file(folder + "/net.json"), nullptr, false);
  if (log.is_object()) {
    result.requests = requests_in(log);
  } else {
    ADD_FAILURE() << "Chromium left no log of the network that can be read\n" << outcome.output;
  }
  const json told = json::parse(between(read_file(folder + "/dom.html"), "<pre>", "</pre>"), nullptr, false);
  if (told.is_array()) result.facts = told.get<std::vector<json>>();
  return result;
}

bool is_sound(const Visit& visit, const std::vector<Page>& pages, const std::vector<std::string>& panels) {
  EXPECT_EQ(visit.console, std::vector<std::string>{});
  EXPECT_EQ(visit.requests, std::vector<std::string>{});
  for (size_t i = 0; i < pages.size(); ++i) {
    const json& page = visit.facts[i];
    if (!page.is_object()) {
      ADD_FAILURE() << "page " << i << " did not come to its end\n" << visit.log;
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
