#include "tools/run/watch/watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>

#include "core/base/process.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

// ---- Curves as characters

constexpr size_t kLevels = 8;  // of a character
constexpr std::array<const char*, kLevels + 1> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, kLevels + 1> kAscii = {" ", ".", ".", "-", "-", "=", "=", "#", "#"};

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

size_t column_of(double x, const SparklineOptions& options) {
  const double share = options.to > options.from ? (x - options.from) / (options.to - options.from) : 0.0;
  const auto last = static_cast<double>(options.columns - 1);
  return static_cast<size_t>(std::clamp(std::floor(share * static_cast<double>(options.columns)), 0.0, last));
}

// The value of each column; NaN for none.
std::vector<double> column_values(std::span<const CurvePoint> points, const SparklineOptions& options) {
  std::vector<double> values(options.columns, kNone);
  std::vector<size_t> counts(options.columns, 0);
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.y) || (options.logarithmic && point.y <= 0.0)) continue;
    const size_t column = column_of(point.x, options);
    double& value = values[column];
    const bool is_first = counts[column]++ == 0;
    switch (options.pick) {
      case SparklineOptions::Pick::kMean:
        value = is_first ? point.y : value + (point.y - value) / static_cast<double>(counts[column]);
        break;
      case SparklineOptions::Pick::kLargest:
        value = is_first ? point.y : std::max(value, point.y);
        break;
      case SparklineOptions::Pick::kSmallest:
        value = is_first ? point.y : std::min(value, point.y);
        break;
    }
  }
  return values;
}

// ---- Frames

// The first characters of a text, with a sign if some are left out.
std::string cut(const std::string& text, size_t columns) {
  if (columns_of(text) <= columns) return text;
  std::string kept;
  for (const char c : text) {
    const bool begins_character = (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (begins_character && columns_of(kept) + 1 > columns - std::min<size_t>(columns, 2)) break;
    kept += c;
  }
  return kept + "..";
}

std::string padded(const std::string& text, size_t columns) {
  const std::string shown = cut(text, columns);
  return shown + std::string(columns - std::min(columns, columns_of(shown)), ' ');
}
std::string right_aligned(const std::string& text, size_t columns) {
  return std::string(columns - std::min(columns, columns_of(text)), ' ') + cut(text, columns);
}

std::string progress_bar(double share, size_t columns, Glyphs glyphs) {
  const auto done = static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns)));
  std::string bar;
  for (size_t i = 0; i < columns; ++i) bar += i < done ? (glyphs == Glyphs::kBlocks ? "█" : "#") : ".";
  return fmt::format("[{}] {:.0f} %", bar, std::floor(100.0 * std::clamp(share, 0.0, 1.0)));
}

double share_done(const RunStatus& status) {
  if (!status.figures) return 0.0;
  const double total = (*status.figures)["steps_total"].value_or(0.0);
  return total > 0.0 ? (*status.figures)["step"].value_or(0.0) / total : 0.0;
}

// A curve of a run.
struct WatchedCurve {
  std::string name;
  std::vector<CurvePoint> points;
  const Metric::Watch& form;
};

std::vector<CurvePoint> points_of(const RunMetrics& metrics, const char* name) {
  std::vector<CurvePoint> points;
  const std::vector<double>& values = metrics.values(name);
  points.reserve(values.size());
  for (const RunStep& step : metrics.steps()) {
    points.push_back({static_cast<double>(step.step), values[points.size()]});
  }
  return points;
}

// The records of this kind that have a number `key`.
std::vector<CurvePoint> points_of_events(const RunMetrics& metrics, const std::string& kind, const char* key) {
  std::vector<CurvePoint> points;
  for (const nlohmann::json* const record : metrics.events(kind)) {
    const auto value = record->find(key);
    if (value != record->end() && value->is_number()) points.push_back({record->value("step", 0.0), *value});
  }
  return points;
}

std::vector<WatchedCurve> curves_of(const RunMetrics& metrics) {
  std::vector<WatchedCurve> curves;
  for (const Metric& row : mantissa::metrics()) {
    const Metric::Watch& watch = row.watch;
    if (watch.curve == nullptr) continue;
    if (watch.needs_change && std::ranges::all_of(metrics.values(row.name), [](double one) { return one == 1.0; })) {
      continue;
    }
    auto points =
        row.of_step != nullptr ? points_of(metrics, row.name) : points_of_events(metrics, row.event, row.field);
    if (!points.empty()) curves.push_back({watch.curve, std::move(points), watch});
  }
  return curves;
}

constexpr size_t kNameColumns = 16, kAxisColumns = 9, kLeastCurve = 10;

// The name above the newest value at the left, and the largest value above the smallest beside the curve. In one row
// there is room for the name and the newest value.
void add_curve(const WatchedCurve& curve, SparklineOptions options, std::vector<std::string>& lines) {
  options.logarithmic = curve.form.is_logarithmic;
  options.pick = curve.form.pick;
  const Sparkline drawn = sparkline(curve.points, options);
  const auto known = std::find_if(curve.points.rbegin(), curve.points.rend(),
                                  [](const CurvePoint& point) { return std::isfinite(point.y); });
  const std::string newest = known == curve.points.rend() ? "-" : curve.form.text(known->y);
  const auto axis_text = [&](double value) { return std::isnan(value) ? "" : curve.form.text(value); };
  for (size_t row = 0; row < options.rows; ++row) {
    const std::string name = row == 0 ? curve.name : row == 1 ? newest : "";
    const std::string axis = options.rows == 1        ? newest
                             : row == 0               ? axis_text(drawn.most)
                             : row + 1 < options.rows ? ""
                                                      : axis_text(drawn.least);
    lines.push_back(padded(name, kNameColumns) + right_aligned(axis, kAxisColumns) + " " + drawn.rows[row]);
  }
}

std::vector<std::string> frame_of_run(const WatchedRun& run, const FrameStyle& style, double now) {
  std::vector<std::string> lines;
  const std::string status = to_text(run.status, now);
  const size_t second = status.find('\n') + 1;
  lines.push_back(status.substr(0, second - 1));
  lines.push_back(progress_bar(share_done(run.status), std::min<size_t>(style.columns - 10, 60), style.glyphs));
  lines.push_back(run.path +
                  (run.status.figures ? " " + status.substr(second, status.find('\n', second) - second) : ""));
  const std::vector<RunStep>& steps = run.metrics.steps();
  const auto skips = run.metrics.events("skip");
  std::vector<std::string> below;  // the curves
  if (!skips.empty()) {
    below.push_back(fmt::format("last skip: step {}: {}", skips.back()->at("step").get<int64_t>(),
                                skips.back()->at("reason").get<std::string>()));
  }
  const auto checkpoint = status.find("last checkpoint: ");
  below.push_back(status.substr(checkpoint, status.find('\n', checkpoint) - checkpoint) +
                  fmt::format("; warnings: {}", run.status.warnings));
  for (const std::string& warning : run.status.last_warnings) below.push_back("  " + warning);
  if (steps.empty()) {
    lines.emplace_back("no step is done yet");
  } else {
    const std::vector<WatchedCurve> curves = curves_of(run.metrics);
    // The last column of a terminal stays empty: some begin a line after it.
    const size_t taken_columns = kNameColumns + kAxisColumns + 2;
    SparklineOptions options{.columns = std::max(kLeastCurve, style.columns - std::min(style.columns, taken_columns)),
                             .from = static_cast<double>(steps.front().step),
                             .to = static_cast<double>(steps.back().step),
                             .glyphs = style.glyphs};
    const size_t taken = lines.size() + below.size() + (skips.empty() ? 0 : 1) + 2;
    const size_t room = style.rows - std::min(style.rows, taken);
    options.rows = std::clamp<size_t>(room / curves.size(), 1, 4);
    lines.emplace_back();
    for (const WatchedCurve& curve : curves) add_curve(curve, options, lines);
    if (!skips.empty()) {
      lines.push_back(padded("skipped steps", kNameColumns) +
                      right_aligned(fmt::format("{}", skips.size()), kAxisColumns) + " " +
                      marked_columns(points_of_events(run.metrics, "skip", "step"), options));
    }
    const std::string first = fmt::format("step {}", steps.front().step), last = fmt::format("{}", steps.back().step);
    lines.push_back(std::string(kNameColumns + kAxisColumns + 1, ' ') + first +
                    right_aligned(last, options.columns - std::min(options.columns, first.size())));
  }
  lines.insert(lines.end(), below.begin(), below.end());
  return lines;
}

size_t width_of(const Metric& metric) { return std::max<size_t>(8, columns_of(metric.watch.column)); }

std::string row_of(const WatchedRun& run, size_t name_columns, double now) {
  const RunFigures figures = run.status.figures.value_or(RunFigures());
  std::string line =
      padded(run.path, name_columns) + " " + right_aligned(name(run.status.health), 8) + " " +
      right_aligned(fmt::format("{:.0f}/{:.0f}", figures["step"].value_or(0.0), figures["steps_total"].value_or(0.0)),
                    15);
  for (const Metric& row : metrics()) {
    if (row.watch.column == nullptr) continue;
    const auto value = figures[row.name];
    line += " " + right_aligned(value ? row.watch.text(*value) : "-", width_of(row));
  }
  const auto end = figures["estimated_end"];
  const std::string left = run.is_under_way() && end ? to_clock(std::max(0.0, *end - now)) : "-";
  return line + " " + right_aligned(fmt::format("{}", run.metrics.events("skip").size()), 5) + " " +
         right_aligned(left, 9);
}

// The loss, in one row after `taken` columns; empty where there is no room.
std::string small_curve(const RunMetrics& metrics, const FrameStyle& style, size_t taken) {
  const std::vector<RunStep>& steps = metrics.steps();
  if (steps.empty() || style.columns < taken + kLeastCurve) return "";
  const SparklineOptions options{.columns = std::min<size_t>(style.columns - taken - 1, 40),
                                 .from = static_cast<double>(steps.front().step),
                                 .to = static_cast<double>(steps.back().step),
                                 .glyphs = style.glyphs};
  return sparkline(points_of(metrics, "loss"), options).rows.front();
}

std::vector<std::string> frame_of_runs(const std::vector<WatchedRun>& runs, const FrameStyle& style, double now) {
  size_t under_way = 0, name_columns = 3;
  for (const WatchedRun& run : runs) {
    under_way += run.is_under_way() ? 1 : 0;
    name_columns = std::max(name_columns, columns_of(run.path));
  }
  name_columns = std::min<size_t>(name_columns, 28);
  std::vector<std::string> lines = {fmt::format("{} of {} under way", under_way, counted(std::ssize(runs), "run"))};
  std::string heading = padded("run", name_columns) + " " + right_aligned("state", 8) + " " + right_aligned("step", 15);
  for (const Metric& row : metrics()) {
    if (row.watch.column != nullptr) heading += " " + right_aligned(row.watch.column, width_of(row));
  }
  heading += " " + right_aligned("skips", 5) + " " + right_aligned("ends in", 9) + "  ";
  const size_t taken = columns_of(heading);
  lines.push_back(heading + metric("loss").watch.curve);
  for (const WatchedRun& run : runs) {
    lines.push_back(row_of(run, name_columns, now) + "  " + small_curve(run.metrics, style, taken));
  }
  return lines;
}

}  // namespace

Glyphs glyphs_of_terminal() {
  std::string locale;
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = environment_variable(name);
  }
  std::ranges::transform(locale, locale.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_utf8 = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return is_utf8 ? Glyphs::kBlocks : Glyphs::kAscii;
}

Sparkline sparkline(std::span<const CurvePoint> points, const SparklineOptions& options) {
  std::vector<double> values = column_values(points, options);
  Sparkline line{.rows = std::vector<std::string>(options.rows), .least = kNone, .most = kNone};
  const auto is_known = [](double value) { return !std::isnan(value); };
  const auto first = std::ranges::find_if(values, is_known);
  const auto end = std::find_if(values.rbegin(), values.rend(), is_known).base();
  if (first != values.end()) {
    for (auto value = first + 1; value < end; ++value) {
      if (std::isnan(*value)) *value = *(value - 1);
    }
    line.least = *std::min_element(first, end);
    line.most = *std::max_element(first, end);
  }
  const auto place = [&](double value) { return options.logarithmic ? std::log(value) : value; };
  const double low = place(line.least), range = place(line.most) - low;
  const auto& glyphs = options.glyphs == Glyphs::kBlocks ? kBlocks : kAscii;
  for (const double value : values) {
    const double share = range > 0.0 ? (place(value) - low) / range : 0.5;
    // The smallest value still shows.
    const auto steps = static_cast<double>(options.rows * kLevels - 1);
    const size_t height = std::isnan(value) ? 0 : 1 + static_cast<size_t>(std::lround(share * steps));
    for (size_t row = 0; row < options.rows; ++row) {
      const size_t below = (options.rows - 1 - row) * kLevels;
      line.rows[row] += glyphs[height > below ? std::min(kLevels, height - below) : 0];
    }
  }
  return line;
}

std::string marked_columns(std::span<const CurvePoint> points, const SparklineOptions& options) {
  std::vector<bool> marked(options.columns, false);
  for (const CurvePoint& point : points) marked[column_of(point.x, options)] = true;
  std::string text;
  for (const bool mark : marked) text += !mark ? " " : options.glyphs == Glyphs::kBlocks ? "×" : "x";
  return text;
}

void WatchedRun::refresh(double now) {
  status = read_status(path, now);
  metrics.refresh();
}

std::string watch_frame(const std::vector<WatchedRun>& runs, const FrameStyle& style, double now) {
  std::vector<std::string> lines =
      runs.size() == 1 ? frame_of_run(runs.front(), style, now) : frame_of_runs(runs, style, now);
  if (lines.size() > style.rows) lines.resize(style.rows);
  std::string text;
  for (const std::string& line : lines) {
    std::string shown = cut(line, style.columns);
    shown.resize(shown.find_last_not_of(' ') + 1);
    text += shown + "\n";
  }
  return text;
}

}  // namespace mantissa
