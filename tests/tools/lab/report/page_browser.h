// Opens pages in headless Chromium and says what they show, write to the console and ask of the network.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mantissa::testing {

// An element's selector and what is chosen or typed there; nothing: a click.
using Action = std::pair<std::string, std::string>;

struct Page {
  std::string html{};
  int width_px = 1280;
  std::vector<Action> actions{};
};

struct Visit {
  std::vector<nlohmann::json>
      facts{};  // of each page, as page_probe.js tells them after its actions; null: it said nothing
  std::vector<std::string> console{};   // every message of any page, of whatever level, and uncaught errors
  std::vector<std::string> requests{};  // addresses that pages asked the network for
  std::string log{};                    // all that the browser wrote
};

// Opens the pages beside each other, each in a frame of its width; fails the test if there is no Chromium. Hosts' names
// are not resolved: nothing leaves the machine.
Visit visit(const std::vector<Page>& pages);

// Checks that hold for every page: nothing on the console, nothing asked of the network, no wider than
// its window, these panels in this order, each with a heading, an explanation and a text, and nothing beside its place.
// Returns false, having failed the test, if a page told nothing.
bool is_sound(const Visit& visit, const std::vector<Page>& pages, const std::vector<std::string>& panels);

// The panel with this id among a page's facts.
const nlohmann::json& panel(const nlohmann::json& facts, const std::string& id);

}  // namespace mantissa::testing
