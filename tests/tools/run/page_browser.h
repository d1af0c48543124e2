// Opens pages in headless Chromium and reports what they show, print to the console and request from the network.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mantissa::testing {

// An element's selector and the value chosen or typed there; an empty value means a click.
using Action = std::pair<std::string, std::string>;

struct Page {
  std::string html{};
  int width_px = 1280;
  std::vector<Action> actions{};
  bool dark = false;  // the colour scheme that the reader prefers
  // The name of a picture of the whole page, to check whether it is legible. Bazel keeps the picture among the test's
  // undeclared outputs. Empty: none.
  std::string picture{};
};

struct Visit {
  // One per page, as page_probe.js reports them after its actions; null: no report. With a picture also its
  // legibility(), and "picture": see picture().
  std::vector<nlohmann::json> facts{};
  std::vector<std::string> console{};   // every message of any page and level, and uncaught errors
  std::vector<std::string> requests{};  // addresses that pages requested from the network
};

// Opens the pages in turn, in a browser shared by the whole test program. Fails the test if there is no
// Chromium. Host names are not resolved, so nothing leaves the machine.
Visit visit(const std::vector<Page>& pages);

// Checks that hold for every page: an empty console, no network requests, no wider than its window, and these panels in
// this order. Each panel has a heading, an explanation and a text, and nothing misplaced. If a page reports nothing,
// fails the test and returns false.
bool is_sound(const Visit& visit, const std::vector<Page>& pages, const std::vector<std::string>& panels);

// Opens a page at 1280 px in light and at 500 px in dark, with a picture of each: NAME-500-dark.png. With every_case()
// also the other way round. Checks that it is sound and legible: labels touch nothing and are neither cut nor small,
// words are whole, text stands out from what is behind it, tables show all columns at 1280 px, the page is as bright as
// its scheme, and a colour stands for one format. Returns the facts of these pages; empty if one reports nothing.
std::vector<nlohmann::json> legible_views(const std::string& name, const std::string& html,
                                          const std::vector<std::string>& panels);

// The panel with this id in a page's facts.
const nlohmann::json& panel(const nlohmann::json& facts, const std::string& id);

}  // namespace mantissa::testing
