#include "tools/run/report/run_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/config/config_binding.h"
#include "tools/config/data_paths.h"
#include "tools/run/metrics/metric_table.h"
#include "tools/run/metrics/metrics_file.h"
#include "tools/run/metrics/step_report.h"
#include "tools/run/report/report.h"
#include "tools/run/watch/watch.h"

namespace mantissa {
namespace {

// Six digits are enough for a picture, and make the page a third as large.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

// ---- Curves

// Parts of equal numbers of steps.
class Parts {
 public:
  Parts(const std::vector<RunStep>& steps, size_t most) : steps_(steps), count_(std::min(steps.size(), most)) {}

  // One value for each step: {mean, low, high}, each a list over the parts. Values that are not finite do not count.
  Json spread(const std::vector<double>& values) const {
    Json mean = Json::array(), low = Json::array(), high = Json::array();
    for (size_t part = 0; part < count_; ++part) {
      double sum = 0.0, least = INFINITY, most = -INFINITY;
      int64_t known = 0;
      for (size_t i = begin_of(part); i < begin_of(part + 1); ++i) {
        if (!std::isfinite(values[i])) continue;
        ++known;
        sum += values[i];
        least = std::min(least, values[i]);
        most = std::max(most, values[i]);
      }
      mean.push_back(rounded(sum / static_cast<double>(known)));
      low.push_back(rounded(least));
      high.push_back(rounded(most));
    }
    return {{"mean", mean}, {"low", low}, {"high", high}};
  }
  template <typename Value>
  Json middle(Value value) const {
    Json middles = Json::array();
    for (size_t part = 0; part < count_; ++part) {
      middles.push_back(rounded(0.5 * (value(steps_[begin_of(part)]) + value(steps_[begin_of(part + 1) - 1]))));
    }
    return middles;
  }

 private:
  size_t begin_of(size_t part) const { return part * steps_.size() / count_; }

  const std::vector<RunStep>& steps_;
  const size_t count_;
};

const char* series_name(const Metric& row) { return row.chart.series != nullptr ? row.chart.series : row.name; }

// By step; where the metric is not known, the metric that is shown instead.
std::vector<double> values_of(const RunMetrics& metrics, const Metric& row) {
  std::vector<double> values = metrics.values(row.name);
  if (row.or_else == nullptr) return values;
  const auto known = [](double value, double other) { return std::isnan(value) ? other : value; };
  std::ranges::transform(values, metrics.values(row.or_else), values.begin(), known);
  return values;
}

Json series_of(const RunMetrics& metrics, size_t most) {
  const Parts parts(metrics.steps(), most);
  Json series = {{"step", parts.middle([](const RunStep& step) { return static_cast<double>(step.step); })},
                 {"tokens", parts.middle([](const RunStep& step) { return step.tokens_so_far; })},
                 {"hours", parts.middle([](const RunStep& step) { return step.hours_so_far; })}};
  for (const Metric& row : mantissa::metrics()) {
    const bool is_curve = row.chart.title != nullptr && row.of_step != nullptr;
    if (is_curve) series[series_name(row)] = parts.spread(values_of(metrics, row));
  }
  return series;
}

// The curves of a page, in the order of their panels.
Json charts() {
  Json list = Json::array();
  for (const Metric& row : metrics()) {
    const Metric::Chart& chart = row.chart;
    if (chart.title == nullptr) continue;
    list.push_back({{"series", series_name(row)},
                    {"title", chart.title},
                    {"panel", chart.panel},
                    {"column", chart.column != nullptr ? Json(chart.column) : Json()},
                    {"log", chart.is_logarithmic},
                    {"zero", chart.starts_at_0},
                    {"share", chart.is_share},
                    {"power_of_2", chart.is_power_of_2}});
  }
  return list;
}

// The place of an event on each axis.
Json placed(const std::vector<RunStep>& steps, int64_t step, Json event) {
  const auto after = std::ranges::upper_bound(steps, step, {}, &RunStep::step);
  const RunStep none;
  const RunStep& last = after == steps.begin() ? none : *(after - 1);
  event["step"] = step;
  event["tokens"] = last.tokens_so_far;
  event["hours"] = rounded(last.hours_so_far);
  return event;
}
int64_t step_of(const Json& record) {
  const double step = record.contains("step") ? number_of(record["step"]) : 0.0;
  return step > 0.0 && step < 1e15 ? static_cast<int64_t>(step) : 0;
}

double median_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return quantile(std::move(values), 0.5);
}

// ---- The parts of one run

// Causes of skipped steps by their text without numbers, the most frequent first.
Json causes_of(const RunMetrics& metrics) {
  static const std::regex kNumber(R"([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?)");
  std::map<std::string, Json> causes;
  for (const Json* const skip : metrics.events("skip")) {
    Json& cause = causes[std::regex_replace(skip->at("reason").get<std::string>(), kNumber, "*")];
    if (cause.is_null()) cause = {{"count", 0}, {"first", skip->at("step")}};
    cause["count"] = cause["count"].get<int64_t>() + 1;
    cause["last"] = skip->at("step");
  }
  std::vector<Json> list;
  for (auto& [text, cause] : causes) {
    cause["cause"] = text;
    list.push_back(cause);
  }
  std::ranges::stable_sort(list, std::ranges::greater(),
                           [](const Json& cause) { return cause["count"].get<int64_t>(); });
  return list;
}

Json evaluations_of(const RunMetrics& metrics) {
  Json list = Json::array();
  for (const Json* const record : metrics.events("validation")) {
    const double loss = record->contains("loss") ? number_of((*record)["loss"]) : NAN;
    list.push_back(placed(metrics.steps(), step_of(*record), {{"loss", rounded(loss)}}));
  }
  return list;
}

// First, last and lowest loss, with its step; null without an evaluation.
Json validation_of(const Json& evaluations) {
  Json best;
  for (const Json& one : evaluations) {
    if (!one["loss"].is_null() && (best.is_null() || one["loss"] < best["loss"])) best = one;
  }
  if (best.is_null()) return nullptr;
  return {{"first", evaluations.front()["loss"]},
          {"last", evaluations.back()["loss"]},
          {"best", best["loss"]},
          {"best_step", best["step"]}};
}

// Seconds by phase over all records; the rest, mostly waits for other ranks, as "other". Null without a record.
Json phases_of(const RunMetrics& metrics) {
  std::map<std::string, double> seconds;
  double wall = 0.0, in_phases = 0.0;
  for (const Json* const record : metrics.events("phases")) {
    if (!record->contains("seconds") || !(*record)["seconds"].is_object()) continue;
    for (const auto& [phase, value] : (*record)["seconds"].items()) {
      if (!value.is_number()) continue;
      seconds[phase] += value.get<double>();
      in_phases += value.get<double>();
    }
    wall += record->value("wall_seconds", 0.0);
  }
  if (seconds.empty()) return nullptr;
  seconds["other"] = std::max(0.0, wall - in_phases);
  return seconds;
}

Json events_of(const RunMetrics& metrics) {
  Json list = Json::array();
  for (const Json& record : metrics.events()) {
    const auto kind = record["event"].get<std::string>();
    if (kind != "precision" && kind != "rollback" && kind != "stop") continue;
    std::string text =
        record.contains("cause") && record["cause"].is_string() ? record["cause"].get<std::string>() : "";
    if (record.contains("changes")) {
      for (const Json& change : record["changes"]) text += "; " + (change.is_string() ? change.get<std::string>() : "");
    }
    list.push_back(placed(metrics.steps(), step_of(record), {{"kind", kind}, {"text", text}}));
  }
  return list;
}

// The last samples of a run: pages of hundreds would hide them.
Json samples_of(const RunMetrics& metrics) {
  constexpr size_t kSamples = 3;
  Json list = Json::array();
  const std::vector<const Json*> all = metrics.events("sample");
  for (size_t i = all.size() - std::min(kSamples, all.size()); i < all.size(); ++i) list.push_back(*all[i]);
  return list;
}

// The newest result of each of train.evaluations.
Json scores_of(const RunMetrics& metrics) {
  std::map<std::string, Json> newest;
  for (const Json* const record : metrics.events("evaluation")) newest[record->value("name", "")] = *record;
  Json list = Json::array();
  for (const auto& [name, record] : newest) list.push_back(record);
  return list;
}

Json examine_run(const std::string& folder, const std::string& name, size_t points, double now) {
  const RunStatus status = read_status(folder, now);
  RunMetrics metrics(folder);
  metrics.refresh();
  const std::vector<RunStep>& steps = metrics.steps();
  std::set<int64_t> recorded;
  for (const RunStep& step : steps) recorded.insert(step.step);
  if (!steps.empty() && std::ssize(recorded) < steps.back().step) {
    log_warn("{}/metrics.jsonl has records of {} of {} steps: tokens, times and curves are of these", folder,
             recorded.size(), steps.back().step);
  }
  const std::string status_text = to_text(status, now);
  const Json evaluations = evaluations_of(metrics);
  const std::vector<const Json*> memory = metrics.events("memory");
  const std::vector<double>& losses = metrics.values("loss");
  const auto newest = std::find_if(losses.rbegin(), losses.rend(), [](double loss) { return std::isfinite(loss); });
  Json skips = Json::array();
  for (const Json* const skip : metrics.events("skip")) {
    skips.push_back(placed(steps, step_of(*skip), {{"reason", skip->at("reason")}}));
  }
  Json run = {{"name", name},
              {"path", folder},
              {"state", mantissa::name(status.health)},
              {"verdict", status_text.substr(0, status_text.find('\n'))},
              {"warnings", status.warnings},
              {"steps", steps.empty() ? 0 : steps.back().step},
              {"tokens", steps.empty() ? 0.0 : steps.back().tokens_so_far},
              {"hours", steps.empty() ? Json(0.0) : rounded(steps.back().hours_so_far)},
              {"loss", newest == losses.rend() ? Json() : rounded(*newest)},
              {"validation", validation_of(evaluations)},
              {"skipped", skips.size()},
              {"memory", memory.empty() ? Json() : *memory.back()},
              {"phases", phases_of(metrics)},
              {"series", series_of(metrics, points)},
              {"evaluations", evaluations},
              {"skips", skips},
              {"causes", causes_of(metrics)},
              {"events", events_of(metrics)},
              {"scores", scores_of(metrics)},
              {"samples", samples_of(metrics)}};
  for (const Metric& row : mantissa::metrics()) {
    if (row.chart.column != nullptr) run[series_name(row)] = rounded(median_of(values_of(metrics, row)));
  }
  return run;
}

// ---- All runs

using Settings = std::map<std::string, std::string>;

Json differing(const std::vector<Settings>& of_runs) {
  Settings all;
  for (const Settings& settings : of_runs) all.insert(settings.begin(), settings.end());
  Json rows = Json::array();
  for (const auto& [path, one] : all) {
    std::vector<std::string> values;
    values.reserve(of_runs.size());
    for (const Settings& settings : of_runs) values.push_back(settings.contains(path) ? settings.at(path) : "–");
    if (path == "train.run_dir" || std::ranges::count(values, values.front()) == std::ssize(values)) continue;
    rows.push_back({{"setting", path}, {"values", values}});
  }
  return rows;
}

Json settings_of(const std::vector<std::string>& folders) {
  std::vector<Settings> of_runs, of_losses;
  for (const std::string& folder : folders) {
    const std::string path = configuration_file(folder);
    const auto text = text_of_file(path);
    if (!text) return {{"reason", path + " cannot be read"}};
    try {
      const Config config = parse_config(*text, path);
      of_runs.push_back(flatten(config));
      of_losses.push_back(loss_settings(config));
    } catch (const ConfigError& error) {
      return {{"reason", error.what()}};
    }
  }
  if (folders.size() == 1) of_runs.push_back(flatten(Config()));
  return {{"rows", differing(of_runs)}, {"of_losses", differing(of_losses)}};
}

// Adds the sentences on a run that a reader should see first. `kind` becomes worse if it must.
void describe_run(const Json& run, std::string& kind, std::vector<std::string>& details) {
  const auto worsen = [&kind](const char* to) {
    if (kind != "bad") kind = to;
  };
  std::string text = fmt::format("{}: {}", run["name"], run["verdict"]);
  const Json& validation = run["validation"];
  if (!validation.is_null()) {
    text += fmt::format("; validation loss {:.4f} to {:.4f}", validation["first"], validation["last"]);
  }
  details.push_back(text);
  const auto state = run["state"].get<std::string>();
  if (state == "failed" || state == "dead") worsen("bad");
  if (state == "silent" || state == "stopped") worsen("attention");
  constexpr double kRises = 1.01;
  if (!validation.is_null() && number_of(validation["last"]) > kRises * number_of(validation["best"])) {
    worsen("attention");
    details.push_back(fmt::format("{}: the validation loss was lowest at step {} ({:.4f}) and has risen since",
                                  run["name"], validation["best_step"], validation["best"]));
  }
  if (run["skipped"] == 0) return;
  const double share = number_of(run["skipped"]) / std::max(1.0, number_of(run["steps"]));
  constexpr double kMany = 0.01;
  if (share > kMany) worsen("attention");
  details.push_back(fmt::format("{}: {} of {} steps were skipped ({}), most for: {}", run["name"], run["skipped"],
                                run["steps"], per_cent(share) + " %", run["causes"][0]["cause"]));
}

// Why the losses of runs cannot be ranked; empty if they can.
std::string why_not_ranked(const Json& settings) {
  if (settings.contains("reason")) return settings["reason"];
  std::string names;
  for (const Json& row : settings["of_losses"]) {
    names += (names.empty() ? "" : ", ") + row["setting"].get<std::string>();
  }
  return names.empty() ? "" : "they are means over different tokens, as the runs differ in " + names;
}

Json verdict_on(const Json& runs, const Json& settings) {
  std::string kind = "good";
  std::vector<std::string> details;
  const Json* best = nullptr;
  std::map<std::string, int> states;
  for (const Json& run : runs) {
    describe_run(run, kind, details);
    ++states[run["state"].get<std::string>()];
    const Json& validation = run["validation"];
    if (!validation.is_null() && (best == nullptr || validation["best"] < (*best)["validation"]["best"])) best = &run;
  }
  std::string line = runs[0]["verdict"];
  if (runs.size() > 1) {
    line.clear();
    for (const auto& [state, number] : states) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", number, state);
    if (const std::string why = why_not_ranked(settings); best != nullptr) {
      line += why.empty()
                  ? fmt::format("; the lowest validation loss is that of {}: {:.4f} at step {}", (*best)["name"],
                                (*best)["validation"]["best"], (*best)["validation"]["best_step"])
                  : "; losses are not ranked: " + why;
    }
    for (const Json& row : settings.value("rows", Json::array())) {
      if (row["setting"] == "model.context") details.push_back("model.context differs: more of it alone lowers a loss");
    }
  }
  return {{"kind", kind}, {"line", line}, {"details", details}};
}

}  // namespace

Json examine_runs(const std::vector<std::string>& folders, double now) {
  // Pages of many runs stay as quick as the page of one run.
  const size_t points = std::clamp<size_t>(4 * kReportPoints / folders.size(), 100, kReportPoints);
  const std::vector<std::string> names = short_names(folders);
  Json runs = Json::array(), settings = settings_of(folders);
  for (size_t i = 0; i < folders.size(); ++i) runs.push_back(examine_run(folders[i], names[i], points, now));
  return {{"version", 1},
          {"title", folders.size() == 1 ? names.front() : counted(std::ssize(folders), "run")},
          {"verdict", verdict_on(runs, settings)},
          {"runs", runs},
          {"charts", charts()},
          {"settings", settings}};
}

}  // namespace mantissa
