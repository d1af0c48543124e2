// A report on the end of a run: the first cause, what was lost, and the last events of its ranks.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/run/postmortem/first_cause.h"

namespace mantissa {

struct PostmortemRequest {
  std::string run{};
  bool previous = false;     // the start before the last
  int64_t events = 10;       // of each rank
  std::vector<int> ranks{};  // whose events are shown; empty: chosen
  std::string html{};        // file; empty: none
};

// title; setting; verdict: kind, line, details; lost; ranks: one row for each; shown: of the ranks with events, their
// events in seconds relative to the first cause, and spans for a chart; hidden: the number of other ranks; stacks:
// files of the watchdog. ConfigError for a rank that the job did not have.
nlohmann::json examine(const RunHistory& run, const PostmortemRequest& request);

// Views of examine().
std::string postmortem_text(const nlohmann::json& figures, int64_t events);
std::string postmortem_page(const nlohmann::json& figures);

// Prints the report and writes the page. Returns the exit code: 0; 2 for a folder without black boxes; 3 if a box is
// damaged, after a report on the others.
int postmortem_verb(const PostmortemRequest& request);

}  // namespace mantissa
