#include "tools/lab/advise/recommendation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <tuple>
#include <utility>

#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {

std::vector<Candidate> candidates_of(const Config& config, const Measurement& measurement) {
  std::vector<Candidate> candidates;
  const std::string as_given = to_yaml(config);
  for (const MeasuredPrecision& one : measurement.precisions) {
    Candidate& candidate =
        candidates.emplace_back(Candidate{.name = one.name, .config = in_precision(config, one.precision)});
    candidate.is_configured = to_yaml(candidate.config) == as_given;
  }
  for (Candidate& other : candidates_of(config)) {
    const std::string own = to_yaml(other.config);
    if (std::ranges::any_of(candidates, [&](const Candidate& one) { return to_yaml(one.config) == own; })) continue;
    if (std::ranges::count(candidates, other.name, &Candidate::name) > 0) {
      if (!other.is_configured) continue;
      other.name = kAsConfigured;  // a pattern with another number of blocks than the measured one
    }
    candidates.push_back(std::move(other));
  }
  return candidates;
}

Recommendation recommend(Advice advice, const Measurement& measurement, int64_t model_blocks) {
  struct Harmless {
    const EvaluatedPrecision* step;
    int coarseness;
    bool has_fp16;
    double seconds;
  };
  std::vector<Harmless> harmless;
  for (const EvaluatedPrecision& one : advice.evaluations) {
    const MeasuredPrecision* const measured = measurement.find(one.name);
    if (measured == nullptr || measured->damage != Damage::kNone || !one.runs() || !one.fits) continue;
    harmless.push_back({.step = &one,
                        .coarseness = coarseness(measured->precision, model_blocks),
                        .has_fp16 = measured->precision.uses_fp16(),
                        .seconds = one.prediction.step_seconds()});
  }
  Recommendation found;
  double limit = 0.0;  // step time of the chosen precision over kLeastGain; 0: nothing is chosen
  if (!harmless.empty()) {
    const Harmless& fastest = *std::ranges::min_element(harmless, {}, &Harmless::seconds);
    const auto precision_then_speed = [](const Harmless& one) { return std::tuple(one.coarseness, one.seconds); };
    const Harmless* chosen = &fastest;
    for (const Harmless& one : harmless) {
      const bool is_as_fast = one.seconds < kLeastGain * fastest.seconds;
      if (is_as_fast && precision_then_speed(one) < precision_then_speed(*chosen)) chosen = &one;
    }
    const Harmless* above = nullptr;
    for (const Harmless& one : harmless) {
      const bool has_less_range = one.has_fp16 && !chosen->has_fp16;
      if (one.coarseness == 0 || one.coarseness >= chosen->coarseness || has_less_range) continue;
      const auto distance = [](const Harmless& from) { return std::tuple(-from.coarseness, from.seconds); };
      if (above == nullptr || distance(one) < distance(*above)) above = &one;
    }
    found.chosen = chosen->step->name;
    found.fastest = fastest.step->name;
    if (above != nullptr) found.above = above->step->name;
    limit = chosen->seconds / kLeastGain;
  }
  for (const EvaluatedPrecision& one : advice.evaluations) {
    if (!one.runs() || !one.fits || one.name == found.chosen) continue;
    const MeasuredPrecision* const measured = measurement.find(one.name);
    const bool is_faster = limit == 0.0 || one.prediction.step_seconds() <= limit;
    if (!is_faster) {
      if (measured != nullptr && one.support == Support::kEmulated) found.emulated.push_back(one.name);
    } else if (measured == nullptr) {
      found.unmeasured.push_back(one.name);
    } else if (measured->damage != Damage::kNone) {
      (measured->damage == Damage::kUnclear ? found.unclear : found.damaged).push_back(one.name);
    }
  }
  found.advice = std::move(advice);
  return found;
}

// ---- Report.

// The names of the fields are the keys of the JSON file.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Measurement, file, model, parameters, tokens_per_step, steps, seeds, baseline,
                                   margin, level, differences)

namespace {

constexpr double kMillion = 1e-6;

const EvaluatedPrecision& evaluated(const Advice& advice, const std::string& name) {
  return *std::ranges::find(advice.evaluations, name, &EvaluatedPrecision::name);
}

std::string times_as_fast(const Recommendation& device, const std::string& name) {
  if (device.chosen.empty()) return "";
  const double gain = evaluated(device.advice, device.chosen).prediction.step_seconds() /
                      evaluated(device.advice, name).prediction.step_seconds();
  return fmt::format(" ({:.2f} x {})", gain, device.chosen);
}

std::string chosen_line(const Recommendation& device, const Measurement& measurement) {
  const Advice& advice = device.advice;
  if (device.chosen.empty()) {
    return fmt::format("{}: nothing to recommend: none of the precisions that do no damage runs or fits there",
                       advice.device);
  }
  const EvaluatedPrecision& chosen = evaluated(advice, device.chosen);
  std::string text =
      fmt::format("{}: {}, {}{} ms a step", advice.device, chosen.name, advice.hardware == nullptr ? "" : "at least ",
                  in_three_digits(1e3 * chosen.prediction.step_seconds()));
  if (chosen.speedup > 0.0 && chosen.name != "fp32") text += fmt::format(", {:.2f} x fp32", chosen.speedup);
  const MeasuredPrecision& measured = *measurement.find(chosen.name);
  text += measured.verdict == "baseline" ? "; it is the baseline"
                                         : fmt::format("; {} to {}", measured.verdict, measurement.baseline);
  if (const std::string outlier = outlier_of(measured.summary); !outlier.empty()) text += "; " + outlier;
  if (device.fastest != device.chosen) {
    text += fmt::format("; {}, no worse either, gains less than {:.0f} %{}", device.fastest, 100.0 * (kLeastGain - 1.0),
                        times_as_fast(device, device.fastest));
  }
  return text;
}

std::vector<std::string> verdict_lines(const Recommendation& device, const Measurement& measurement) {
  std::vector<std::string> lines = {chosen_line(device, measurement)};
  if (device.advice.hardware != nullptr && !device.chosen.empty()) {
    const std::string launches = launches_text(evaluated(device.advice, device.chosen).prediction);
    if (!launches.empty()) lines.push_back(launches);
  }
  const char* const faster = device.chosen.empty() ? "" : "faster, but ";
  const auto timed = [&](const std::string& name) { return name + times_as_fast(device, name); };
  for (const std::string& name : device.unclear) {
    lines.push_back(fmt::format("{}inconclusive: {}: {}", faster, timed(name), measurement.find(name)->why));
  }
  nlohmann::ordered_map<std::string, std::vector<std::string>> groups;
  for (const std::string& name : device.damaged) {
    const bool is_worse = measurement.find(name)->why.empty();
    groups[is_worse ? "worse" : "their runs failed"].push_back(timed(name));
  }
  for (const std::string& name : device.unmeasured) groups["not measured"].push_back(timed(name));
  for (const auto& [what, names] : groups) {
    lines.push_back(fmt::format("{}{}: {}", faster, what, fmt::join(names, ", ")));
  }
  if (!device.emulated.empty()) {
    lines.push_back(fmt::format("emulated here, without a gain: {}", fmt::join(device.emulated, ", ")));
  }
  return lines;
}

Json precision_figures(const EvaluatedPrecision& one, const Measurement& measurement) {
  Json figures = {{"name", one.name},
                  {"verdict", nullptr},
                  {"runs", name(one.support)},
                  {"fits", one.fits},
                  {"reason", one.reason}};
  if (const MeasuredPrecision* const measured = measurement.find(one.name)) {
    figures["verdict"] = measured->verdict;
    figures["why"] = measured->why;
    figures["difference"] = measured->summary.at("loss_difference");
  }
  if (one.runs()) figures["step_seconds"] = one.prediction.step_seconds();
  if (one.speedup > 0.0) figures["speedup"] = one.speedup;
  return figures;
}

// How far the measurement is from the training that is to come.
std::string distance_line(const Json& json) {
  const Json& measured = json.at("measured");
  const double own = json.at("parameters"), theirs = measured.at("parameters");
  const auto is_equal = [](const Json& one) { return one.at("verdict") == "equal"; };
  const bool has_equal = std::ranges::any_of(json.at("devices")[0].at("precisions"), is_equal);
  std::string text = fmt::format(
      "Damage was measured on {} ({:.2f} million parameters), {} of {}, {}, against {}, equal within {:.2g} nats.{}",
      measured.at("model"), theirs * kMillion, counted(measured.at("steps"), "step"),
      counted(measured.at("tokens_per_step"), "token"), counted(measured.at("seeds"), "seed"), measured.at("baseline"),
      measured.at("margin"), has_equal ? " " + equal_text(measured.at("seeds"), measured.at("level")) : "");
  std::vector<std::string> names;
  for (const Json& difference : measured.at("differences")) {
    const std::string line = difference;
    names.push_back(line.substr(0, line.find(':')));
  }
  const int64_t steps = json.at("steps"), theirs_steps = measured.at("steps");
  if (steps > theirs_steps) {
    text += fmt::format(" This run has {}: slow damage may not have shown.", counted(steps, "step"));
  }
  if (names.empty()) return text + " Its other settings are those here.";
  if (own != theirs) {
    text += fmt::format(" This model has {:.2f} million: damage may not extrapolate to it.", own * kMillion);
  }
  return text + fmt::format(" Not as here: {}.", fmt::join(names, ", "));
}

// Rows: precisions; a column of times for each device.
void add_matrix(const Json& json, ReportText& text) {
  Json rows = Json::array();
  std::vector<Column> columns = {
      {"precision", "name"}, {"damage", "damage"}, {"nats beside the baseline", "difference", with_error("+")}};
  for (size_t index = 0; index < json.at("devices").size(); ++index) {
    const Json& device = json.at("devices")[index];
    const std::string heading = device.at("hardware").is_null() ? "here" : device.at("hardware").get<std::string>();
    columns.push_back({"ms\n" + heading, fmt::format("ms/{}", index)});
    for (const Json& one : device.at("precisions")) {
      auto row = std::ranges::find(rows, one.at("name"), [](const Json& known) { return known.at("name"); });
      if (row == rows.end()) {
        const bool is_measured = !one.at("verdict").is_null();
        rows.push_back({{"name", one.at("name")},
                        {"damage", is_measured ? one.at("verdict") : Json("not measured")},
                        {"difference", is_measured && one.at("verdict") != "baseline" ? one.at("difference") : Json()},
                        {"ms", Json::array()}});
        row = std::prev(rows.end());
      }
      std::string cell = "-";
      if (one.contains("step_seconds")) cell = in_three_digits(1e3 * one.at("step_seconds").get<double>());
      if (one.at("runs") == name(Support::kEmulated)) cell = "e " + cell;
      if (!one.at("fits").get<bool>()) cell = "m " + cell;
      if (one.at("name") == device.at("chosen")) cell = "* " + cell;
      (*row)["ms"][index] = cell;
    }
  }
  text.table(rows, columns);
  text.line("*: recommended; e: emulated; m: needs more memory than there is; -: the device or this model has it not");
}

}  // namespace

RecommendationReport report_recommendations(const std::string& title, const Config& config, Measurement measurement,
                                            std::vector<Advice> devices) {
  RecommendationReport report{.title = title, .steps = config.train.steps, .measurement = std::move(measurement)};
  const Measurement& measured = report.measurement;
  for (Advice& advice : devices) {
    report.devices.push_back(recommend(std::move(advice), measured, config.model.layers));
  }
  const Recommendation& first = report.devices.front();
  if (report.devices.size() == 1 && !first.chosen.empty()) {
    report.guide = production_guide(config, measured, *measured.find(first.chosen), measured.find(first.above));
  }
  return report;
}

Json to_json(const RecommendationReport& report) {
  const Measurement& measurement = report.measurement;
  const Advice& first = report.devices.front().advice;
  Json json = {{"model", report.title},    {"parameters", first.parameters},
               {"steps", report.steps},    {"ranks", first.ranks},
               {"least_gain", kLeastGain}, {"measured", measurement},
               {"devices", Json::array()}, {"guide", report.guide ? report.guide->figures : Json()}};
  for (const Recommendation& device : report.devices) {
    const auto optional = [](const std::string& name) { return name.empty() ? Json() : Json(name); };
    Json precisions = Json::array();
    for (const EvaluatedPrecision& one : device.advice.evaluations) {
      precisions.push_back(precision_figures(one, measurement));
    }
    json["devices"].push_back({{"hardware", device.advice.hardware ? Json(device.advice.hardware->name) : Json()},
                               {"title", device.advice.device},
                               {"chosen", optional(device.chosen)},
                               {"above", optional(device.above)},
                               {"fastest", optional(device.fastest)},
                               {"unclear", device.unclear},
                               {"damaged", device.damaged},
                               {"unmeasured", device.unmeasured},
                               {"emulated", device.emulated},
                               {"verdict", verdict_lines(device, measurement)},
                               {"precisions", std::move(precisions)}});
  }
  return json;
}

ReportText to_text(const RecommendationReport& report) {
  const Json json = to_json(report);
  ReportText text;
  for (const Json& device : json.at("devices")) {
    const char* indent = "";
    for (const Json& line : device.at("verdict")) text.line("{}{}", std::exchange(indent, "  "), line);
  }
  text.blank_line().paragraph(distance_line(json));
  text.line(
      "A lower precision counts as faster from {:.0f} % on: on a CPU, steps were within that of their prediction.",
      100.0 * (kLeastGain - 1.0));
  text.blank_line();
  add_matrix(json, text);
  for (const EvaluatedPrecision& one : report.devices.front().advice.evaluations) {
    const MeasuredPrecision* const measured = report.measurement.find(one.name);
    if (measured != nullptr && !measured->why.empty()) text.line("{}: {}", one.name, measured->why);
  }
  text.blank_line();
  if (report.guide) {
    add_guide(report.guide->figures, text);
  } else if (report.devices.size() > 1) {
    text.line("With one --hardware there is a guide to production: what to monitor, to keep to and to fall back on");
  }
  return text;
}

std::string to_production_yaml(const RecommendationReport& report) {
  if (!report.guide) {
    throw ConfigError("--output: there is nothing to write: " +
                      chosen_line(report.devices.front(), report.measurement));
  }
  ReportText text;
  for (const std::string& line : verdict_lines(report.devices.front(), report.measurement)) text.paragraph(line);
  text.paragraph(distance_line(to_json(report))).blank_line();
  add_guide(report.guide->figures, text);
  std::string yaml =
      fmt::format("# A configuration for production, made of {} by `mantissa advise --measured`.\n#\n", report.title);
  std::istringstream lines(text.text());
  for (std::string line; std::getline(lines, line);) yaml += line.empty() ? "#\n" : "# " + line + "\n";
  return yaml + "\n" + to_yaml(report.guide->config);
}

}  // namespace mantissa
