#include <fmt/ranges.h>

#include "tools/lab/advise/advice.h"

namespace mantissa {

namespace {

constexpr double kMib = 1024.0 * 1024.0;
constexpr size_t kOpsShown = 16;

Json known(double value) { return value > 0.0 ? Json(value) : Json(); }

Json figures(const Hardware& hardware) {
  Json flops = Json::object();
  for (const ProductFormat format : kAllProductFormats) {
    if (hardware.peak(format) > 0.0) flops[std::string(name(format))] = hardware.peak(format);
  }
  return {{"name", hardware.name},
          {"title", hardware.title},
          {"flops", flops},
          {"memory_bytes", hardware.memory_bytes},
          {"memory_bandwidth", hardware.memory_bandwidth},
          {"link_bandwidth", hardware.link_bandwidth},
          {"watts", hardware.watts},
          {"idle_watts", hardware.idle_watts},
          {"joules_per_byte", hardware.joules_per_byte},
          {"source", hardware.source},
          {"idle_source", hardware.idle_source}};
}

Json figures(const OpCost& cost) {
  return {
      {"phase", cost.phase},    {"op", cost.op},       {"format", cost.flops > 0.0 ? Json(name(cost.format)) : Json()},
      {"calls", cost.calls},    {"flops", cost.flops}, {"bytes", cost.bytes},
      {"seconds", cost.seconds}};
}

Json figures(const EvaluatedPrecision& found, const Advice& advice) {
  Json json = {{"name", found.name},
               {"configured", found.is_configured},
               {"runs", name(found.support)},
               {"reason", found.reason}};
  if (!found.runs()) return json;
  const Prediction& prediction = found.prediction;
  json.update({{"step_seconds", prediction.step_seconds()},
               {"tokens_per_second", static_cast<double>(advice.tokens_per_step) / prediction.step_seconds()},
               {"speedup", known(found.speedup)},
               {"speedup_bound", known(found.bound)},
               {"kernel_seconds", prediction.kernel_seconds},
               {"sent_bytes", prediction.sent_bytes},
               {"sent_seconds", prediction.sent_seconds()},
               {"exposed_seconds", prediction.exposed_seconds},
               {"joules", known(prediction.joules)},
               {"most_joules", known(prediction.most_joules)},
               {"fits", found.fits},
               {"memory_bytes", found.memory},
               {"ops", Json::array()}});
  json["memory_bytes"]["total"] = found.memory.total();
  for (const OpCost& cost : prediction.ops) json["ops"].push_back(figures(cost));
  return json;
}

void add_hardware(const Json& hardware, ReportText& text) {
  const auto figure = [&](const char* key) { return number_of(hardware[key]); };
  std::vector<std::string> rates;
  for (const ProductFormat format : kAllProductFormats) {
    const Json& flops = hardware["flops"];
    const std::string word(name(format));
    if (flops.contains(word)) rates.push_back(fmt::format("{} {:.1f}", word, 1e-12 * number_of(flops[word])));
  }
  text.line(
      "\n{} by {}:\n  {} TFLOP/s; memory {:.0f} GB at {:.0f} GB/s; link {:.0f} GB/s one way; {:.0f} W; {:.1f} pJ a "
      "byte of memory; {:.0f} W idle ({})\n"
      "Times are a roofline of the data sheet: no step is faster, real ones are slower. Energy is a rank's, without "
      "links: from idle power, arithmetic and memory at these times to {:.0f} W for {:.1f} times as long, as trainings "
      "take that reach {:.0f} % of the peak.",
      hardware["title"], hardware["source"], fmt::join(rates, ", "), figure("memory_bytes") * 1e-9,
      figure("memory_bandwidth") * 1e-9, figure("link_bandwidth") * 1e-9, figure("watts"),
      figure("joules_per_byte") * 1e12, figure("idle_watts"), hardware["idle_source"], figure("watts"),
      1.0 / kAttainedShare, 100.0 * kAttainedShare);
}

// Time of a step by operation, and memory of a rank.
void add_step(const Json& best, ReportText& text) {
  Json ops = Json::array();
  for (const Json& op : best["ops"]) {
    if (ops.size() == kOpsShown) break;
    ops.push_back(op);
    if (!op["format"].is_null()) ops.back()["op"] = fmt::format("{} {}", op["op"], op["format"]);
    for (const char* rate : {"flops", "bytes"})
      ops.back()[rate] = known(number_of(op[rate]) / number_of(op["seconds"]));
  }
  if (best["exposed_seconds"] > 0.0) {
    ops.push_back({{"phase", ""}, {"op", "waiting for links"}, {"calls", ""}, {"seconds", best["exposed_seconds"]}});
  }
  text.line("\nwhere the time of a step in {} goes:", best["name"])
      .table(ops, {{"operation", "op"},
                   {"phase", "phase"},
                   {"calls", "calls"},
                   {"ms", "seconds", predicted(1e3)},
                   {"%", "seconds", in_format("{:.1f}", 100.0 / number_of(best["step_seconds"]))},
                   {"GFLOP/s", "flops", predicted(1e-9)},
                   {"GB/s", "bytes", predicted(1e-9)}});
  std::string memory;
  for (const char* category : {"weights", "gradients", "masters", "moments", "activations", "buffers", "packed"}) {
    const double bytes = best["memory_bytes"][category];
    if (bytes > 0.0 || category != std::string_view("packed")) {
      memory += fmt::format("{} {} {:.1f}", memory.empty() ? "" : ",", category, bytes / kMib);
    }
  }
  text.line("\nmemory of a rank in {}, MiB:{}", best["name"], memory);
}

}  // namespace

Json to_json(const Advice& advice) {
  Json json = {{"model", advice.model},
               {"device", advice.device},
               {"hardware", advice.hardware ? figures(*advice.hardware) : Json()},
               {"ranks", advice.ranks},
               {"parameters", advice.parameters},
               {"tokens_per_step", advice.tokens_per_step},
               {"verdict", advice.verdict},
               {"precisions", Json::array()}};
  for (const EvaluatedPrecision& found : advice.evaluations) json["precisions"].push_back(figures(found, advice));
  return json;
}

CellText predicted(double unit) {
  return [unit](const Json& value) { return value.is_number() ? in_three_digits(unit * number_of(value)) : "-"; };
}

ReportText to_text(const Advice& advice) {
  const Json json = to_json(advice);
  Json rows = json["precisions"];
  for (Json& row : rows) {
    if (row["configured"] == true) row["name"] = fmt::format("{} *", row["name"]);
  }
  // The roofline's ends are marked as such.
  const bool is_roofline = advice.hardware != nullptr;
  std::vector<Column> columns = {{"precision", "name"},
                                 {"runs", "runs"},
                                 {is_roofline ? "ms a step\nat least" : "ms a step", "step_seconds", predicted(1e3)},
                                 {is_roofline ? "tokens/s\nat most" : "tokens/s", "tokens_per_second", predicted()},
                                 {"x fp32", "speedup", in_format("{:.2f}")},
                                 {"at best", "speedup_bound", in_format("{:.2f}")},
                                 {"MiB a rank", "memory_bytes/total", in_format("{:.1f}", 1.0 / kMib)},
                                 {"MB sent", "sent_bytes", in_format("{:.3f}", 1e-6)}};
  if (is_roofline) {
    columns.push_back({"J a rank\nfrom", "joules", predicted()});
    columns.push_back({"to", "most_joules", predicted()});
  }
  ReportText text;
  text.line("{}\n\n{}: {:.2f} million parameters, {} a step, {}\n", advice.verdict, advice.model,
            static_cast<double>(advice.parameters) * 1e-6, counted(advice.tokens_per_step, "token"),
            counted(advice.ranks, "rank"))
      .table(rows, columns)
      .blank_line();
  for (const EvaluatedPrecision& found : advice.evaluations) text.line("{}: {}", found.name, found.reason);
  if (advice.evaluations.front().runs()) add_step(json["precisions"][0], text);
  if (advice.hardware) add_hardware(json["hardware"], text);
  return text;
}

}  // namespace mantissa
