// A report on runs beside each other: curves, skipped steps, speed, memory, time and settings.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mantissa {

struct RunReportRequest {
  std::vector<std::string> runs{};  // folders
  std::string html{}, json{};       // files; empty: none
};

// title; verdict: kind (good, attention, bad), line, details; runs: name, path, state, verdict, steps, tokens, hours,
// loss, validation (first, last, best), tokens_per_second and mfu (medians), skipped, memory (predicted, measured, by
// category), phases (seconds by name), series, evaluations, skips, causes of skips, events, samples; settings: of
// several runs those that differ, of one those that are not at their defaults, with the values by run, or `reason` why
// there are none. `series` has for each of at most kReportPoints parts of the run: step, tokens and hours in the
// middle, and the mean, the least and the largest value of each figure. ConfigError for a folder that is no run's.
// `now`: seconds of Unix time.
nlohmann::json examine_runs(const std::vector<std::string>& folders, double now);
inline constexpr size_t kReportPoints = 800;

// Views of examine_runs().
std::string run_report_text(const nlohmann::json& figures);
std::string run_report_page(const nlohmann::json& figures);

// Prints the report and writes the files: 0; 2 for a folder that is no run's, or a file that cannot be written.
int report_verb(const RunReportRequest& request);

}  // namespace mantissa
