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

// The figures of runs. ConfigError for a folder that is not a run's. `now`: seconds of Unix time.
//
//   title     string
//   verdict   object  kind (good, attention, bad), line, details
//   runs      array   name, path, state, verdict; steps, tokens, hours; loss, validation (first, last, best);
//                     tokens_per_second, mfu (medians); memory (predicted, measured, by category); phases (seconds by
//                     name); series, evaluations, events, samples; skipped, skips, causes of skips
//   charts    array   series, title, panel and form of the curves, and the headings of medians, by the table of metrics
//   settings  object  values by run. Several runs: the settings that differ. One run: settings not at their defaults.
//                     of_losses: the same of loss_settings(). `reason` explains why there are none
//
// A series has at most kReportPoints parts: step, tokens and hours of its middle; mean, least and largest values.
nlohmann::json examine_runs(const std::vector<std::string>& folders, double now);
inline constexpr size_t kReportPoints = 800;

// Views of examine_runs().
std::string run_report_text(const nlohmann::json& figures);
std::string run_report_page(const nlohmann::json& figures);

// Prints the report and writes the files: 0; 2 for a folder without a run, or a file that cannot be written.
int report_verb(const RunReportRequest& request);

}  // namespace mantissa
