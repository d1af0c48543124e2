// The metrics of a run, a row each: the log, metrics.jsonl, TensorBoard, metrics.prom, `status`, `watch`, the report
// and docs/metrics.md take their names, units and texts from here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "tools/run/metrics/step_report.h"

namespace mantissa {

// "23.4k".
std::string in_thousands(double value);
// In four digits; "-" for NaN.
std::string in_four_digits(double value);

// The figures of a step after it is done.
struct StepFigures {
  const StepReport& report;
  const SpeedContext& speed;
  size_t memory_bytes = 0;    // held by rank 0
  std::string skip_reason{};  // empty: the step was applied
};

struct Metric {
  using Text = std::string (*)(double);

  const char* name;
  // Only for metrics of steps, for which `name` is the field in the `step` records of metrics.jsonl.
  const char *unit = "", *meaning = "";
  // Its value after a step, null if it is not known; no function: a metric of the run, set when it changes.
  nlohmann::json (*of_step)(const StepFigures&) = nullptr;
  // Records of steps that do not know it leave it out. Otherwise it is null in them.
  bool is_seldom = false;
  // The records of metrics.jsonl that hold it, and its field there, if not `name`.
  const char *event = "step", *field = nullptr;
  const char* tag = nullptr;      // of TensorBoard
  const char* or_else = nullptr;  // line and report show this metric instead where the value is not known

  // metrics.prom, where mantissa_ stands before the name, and `status --json`.
  struct Prometheus {
    const char *name = nullptr, *type = nullptr, *help = nullptr;
    double units = 1.0;  // its value in metrics.jsonl over the one here
  } prometheus{};
  const char* status = nullptr;  // another name in `status --json`; empty: it leaves the metric out

  // The line of a step in the log: "loss 7.62"; or a line of its own in `status`. Empty texts are left out.
  struct Line {
    enum class Part : uint8_t { kResult, kSpeed, kStatus } part = Part::kResult;
    Text text = nullptr;
    // Lines that are too long leave out metrics above 0, the smallest first.
    int leave_out = 0;
  } line{};

  // `watch`.
  struct Watch {
    const char *curve = nullptr, *column = nullptr;  // headings: of one run, of several
    Text text = in_four_digits;
    enum class Pick : uint8_t { kMean, kLargest, kSmallest } pick = Pick::kMean;  // of the steps in a column
    bool is_logarithmic = false, needs_change = false;  // whether a curve that is 1 throughout is left out
  } watch{};

  // The report.
  struct Chart {
    const char *title = nullptr, *panel = nullptr;
    const char* series = nullptr;  // its name in the JSON, if not the metric's
    const char* column = nullptr;  // heading of its median in the table of runs
    bool is_logarithmic = false, starts_at_0 = false, is_share = false;
    bool is_power_of_2 = false;  // drawn by its exponent; runs at 1 throughout are left out
  } chart{};
};

std::span<const Metric> metrics();
// ContractError for a name that no row has.
const Metric& metric(std::string_view name);

// The value of a step; nothing if it is not known or no number. NaN and Inf are values.
std::optional<double> value_of(const Metric& metric, const StepFigures& figures);

// A record of metrics.jsonl. Figures that are unknown or not finite are null in the file.
nlohmann::json step_json(const StepFigures& figures);

// "step 5/100 | loss 7.6201, norm 2.100, lr 3.0e-04, scale 65536 | 12.3 ms, 90.0k tok/s, MFU 45% | 14:02, ends 14:05".
// A loss scale of 1 is left out. MFU is of the GEMM peak, or else of the data sheet, if one is known. At most 120
// columns: a line that would be longer leaves out the time of the step, then MFU.
std::string step_line(const StepFigures& figures, int64_t steps, const std::string& time);

}  // namespace mantissa
