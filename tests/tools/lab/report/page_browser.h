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
};

struct Visit {
  std::vector<nlohmann::json>
      facts{};                         // one per page, as page_probe.js reports them after its actions; null: no report
  std::vector<std::string> console{};  // every message of any page and level, and uncaught errors
  std::vector<std::string> requests{};  // addresses that pages requested from the network
  std::string log{};                    // everything that the browser wrote
};

// Opens the pages beside each other, each in a frame of its width. Fails the test if there is no Chromium. Host names
// are not resolved, so nothing leaves the machine.
Visit visit(const std::vector<Page>& pages);

// Checks that hold for every page: an empty console, no network requests, no wider than its window, and these panels in
// this order. Each panel has a heading, an explanation and a text, and nothing misplaced. If a page reports nothing,
// fails the test and returns false.
bool is_sound(const Visit& visit, const std::vector<Page>& pages, const std::vector<std::string>& panels);

// The panel with this id in a page's facts.
const nlohmann::json& panel(const nlohmann::json& facts, const std::string& id);

}  // namespace mantissa::testing
