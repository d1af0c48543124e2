#include "tools/lab/advise/advice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/config.h"

namespace mantissa {
namespace {

constexpr std::string_view kConversions[] = {"cast",     "split",      "amax",     "tensor_scale",
                                             "quantize", "from_codes", "hadamard", "delayed_scales"};

double flops_in(const StepCalls& step, ProductFormat format) {
  double sum = 0.0;
  for (const KernelCall& call : step.calls) sum += call.format == format ? call.work.flops : 0.0;
  return sum;
}

// Names the format that the device has no units for; empty if it has all.
std::string missing(const StepCalls& step, const Candidate& candidate, const Hardware& hardware) {
  if (candidate.config.precision.fp32_products == Fp32Products::kTf32 && hardware.peak(ProductFormat::kTf32) <= 0.0) {
    return fmt::format("{} has no units for tf32, or none whose rate is published: products would stay in fp32",
                       hardware.title);
  }
  for (const ProductFormat format : kAllProductFormats) {
    if (flops_in(step, format) <= 0.0 || units_for(hardware, format)) continue;
    return fmt::format("{} has no units for {}, or none whose rate is published", hardware.title, name(format));
  }
  return "";
}

Support support_of(const StepCalls& step, const Candidate& candidate, const Hardware* hardware) {
  if (candidate.config.precision.recipe) {
    return flops_in(step, ProductFormat::kF8) > 0.0 ? Support::kNative : Support::kEmulated;
  }
  if (hardware == nullptr) return Support::kMeasured;
  for (const ProductFormat format : kAllProductFormats) {
    if (flops_in(step, format) > 0.0 && hardware->peak(format) <= 0.0) return Support::kEmulated;
  }
  return Support::kNative;
}

// "products in bf16 at 989 TFLOP/s, 14.8 times fp32's".
std::string rate_text(const Hardware& hardware, ProductFormat format) {
  const auto units = units_for(hardware, format), fp32 = units_for(hardware, ProductFormat::kF32);
  std::string text = fmt::format("products in {}", name(format));
  if (units->format != format && units->products > 1) {
    text += fmt::format(", of {} in {} each", units->products, name(units->format));
  } else if (units->format != format) {
    text += fmt::format(", made by {} units", name(units->format));
  }
  text += fmt::format(" at {:.0f} TFLOP/s", units->flops * 1e-12);
  if (fp32 && format != ProductFormat::kF32) text += fmt::format(", {:.1f} times fp32's", units->flops / fp32->flops);
  return text;
}

// Why a precision that runs takes its time.
std::string reason_of(const EvaluatedPrecision& found, const Candidate& candidate, const Target& target) {
  const Prediction& prediction = found.prediction;
  std::array<double, std::size(kAllProductFormats)> flops{};
  double products = 0, conversions = 0, memory_bound = 0;  // seconds
  for (const OpCost& cost : prediction.ops) {
    flops[static_cast<size_t>(cost.format)] += cost.flops;
    if (cost.flops > 0.0) products += cost.seconds;
    if (std::ranges::find(kConversions, cost.op) != std::end(kConversions)) conversions += cost.seconds;
    memory_bound += cost.memory_bound_seconds;
  }
  const auto format = static_cast<ProductFormat>(std::ranges::max_element(flops) - flops.begin());
  const double step = prediction.step_seconds();
  std::string text =
      target.hardware ? rate_text(*target.hardware, format) : fmt::format("products in {}", name(format));
  if (target.hardware && format == ProductFormat::kF64) text += " (this program computes fp64 on CPUs only)";
  text += fmt::format("; {:.0f} % of the step is products", 100.0 * products / step);
  if (target.hardware) text += fmt::format(", {:.0f} % is bound by memory", 100.0 * memory_bound / step);
  const auto add_share = [&](double seconds, const char* what) {
    if (seconds > 0.0005 * step) text += fmt::format(", {:.1f} % {}", 100.0 * seconds / step, what);
  };
  add_share(conversions, "converts numbers");
  add_share(prediction.exposed_seconds, "waits for links");
  if (candidate.config.precision.recipe && found.support == Support::kEmulated) {
    text += fmt::format("; no units for {}: numbers are rounded to it and multiplied in {}", found.name, name(format));
    const bool is_fp4 = candidate.config.precision.recipe->scaling == Scaling::kTwoLevel;
    if (is_fp4 && target.hardware && target.hardware->peak(ProductFormat::kF4) > 0.0) {
      text += " (this program does not use the device's fp4 units)";
    }
  }
  return text;
}

EvaluatedPrecision evaluate(const Candidate& candidate, int ranks, const Target& target) {
  EvaluatedPrecision found{.name = candidate.name, .is_configured = candidate.is_configured};
  try {
    validate_for_ranks(candidate.config, ranks);
    const TargetStep step = step_on(target, candidate.config, ranks);
    found.memory = step.memory;
    if (target.hardware) found.reason = missing(step.calls, candidate, *target.hardware);
    if (!found.reason.empty()) {
      found.support = Support::kUnavailable;
      return found;
    }
    found.support = support_of(step.calls, candidate, target.hardware);
    found.prediction = predict(step.calls, *target.costs);
  } catch (const ConfigError& error) {
    found.support = Support::kRefused;
    found.reason = error.what();
    return found;
  }
  const auto bytes = static_cast<double>(found.memory.total());
  found.fits = target.memory_bytes <= 0.0 || bytes <= target.memory_bytes;
  found.reason = reason_of(found, candidate, target);
  if (!found.fits) {
    found.reason = fmt::format("needs {:.1f} GB of memory, {:.1f} GB are there; {}", bytes * 1e-9,
                               target.memory_bytes * 1e-9, found.reason);
  }
  return found;
}

// A roofline gives the least time of a step, timed kernels its time.
std::string with_speedup(const EvaluatedPrecision& found, const Advice& advice) {
  std::string text = fmt::format("{}{} ms a step", advice.hardware != nullptr ? "at least " : "",
                                 in_three_digits(1e3 * found.prediction.step_seconds()));
  if (found.speedup > 0.0) text += fmt::format(", {:.2f} times as fast as fp32", found.speedup);
  return text;
}

// The fastest precision, and how the configured one compares.
std::string verdict_of(const Advice& advice) {
  const EvaluatedPrecision& best = advice.evaluations.front();
  std::string text;
  if (!best.runs()) {
    text = fmt::format("no precision of these runs on {}", advice.device);
  } else if (!best.fits) {
    text = fmt::format(
        "no precision of these fits into the memory of {}: use more ranks, a smaller train.micro_batch or "
        "train.recompute",
        advice.device);
  } else {
    text = fmt::format("fastest on {}: {}, {}", advice.device, best.name, with_speedup(best, advice));
    if (best.bound > 0.0) {
      text += fmt::format(" ({:.2f} times with every product and byte at the best rate {})", best.bound,
                          advice.hardware != nullptr ? "of the device" : "that an operation reaches here");
    }
  }
  for (const EvaluatedPrecision& found : advice.evaluations) {
    if (!found.is_configured || &found == &best) continue;
    text += fmt::format("\nas configured ({}): {}", found.name,
                        found.runs() ? with_speedup(found, advice) : std::string(name(found.support)));
  }
  const std::string launches = advice.hardware != nullptr && best.runs() ? launches_text(best.prediction) : "";
  if (!launches.empty()) text += "\n" + launches;
  return text + "\nThis is about speed alone: `mantissa analyze model` says what a precision does to the training.";
}

// ---- Report.

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

std::string_view name(Support support) {
  constexpr std::string_view kNames[] = {"natively", "emulated", "measured", "not available", "refused"};
  return kNames[static_cast<size_t>(support)];
}

Advice advise(const std::string& model, const Config& config, const std::vector<Candidate>& candidates, int ranks,
              const Target& target) {
  Advice advice{.model = model, .device = target.title, .hardware = target.hardware, .ranks = ranks};
  advice.tokens_per_step = config.train.global_batch * config.model.context;
  auto& all = advice.evaluations;
  for (const Candidate& candidate : candidates) all.push_back(evaluate(candidate, ranks, target));
  EvaluatedPrecision fp32;
  if (const auto found = std::ranges::find(all, "fp32", &EvaluatedPrecision::name); found != all.end()) {
    fp32 = *found;
  } else {
    const std::vector<Candidate> plain = candidates_of(config, {"fp32"});
    fp32 = evaluate(*std::ranges::find(plain, "fp32", &Candidate::name), ranks, target);
  }
  std::vector<const Prediction*> steps = {&fp32.prediction};
  for (const EvaluatedPrecision& found : all) steps.push_back(&found.prediction);
  const Rates rates = target.costs->rates().value_or(rates_reached(steps));
  for (EvaluatedPrecision& found : all) {
    advice.parameters = std::max(advice.parameters, found.memory.parameters);
    if (!found.runs() || !fp32.runs()) continue;
    found.speedup = fp32.prediction.step_seconds() / found.prediction.step_seconds();
    const bool may_gain = found.name != "fp32" && found.name != "fp64";
    if (may_gain) found.bound = speedup_bound(fp32.prediction, found.prediction, rates);
  }
  std::ranges::stable_sort(all, {}, [](const EvaluatedPrecision& found) {
    return std::tuple(!found.runs(), !found.fits, found.prediction.step_seconds());
  });
  advice.verdict = verdict_of(advice);
  return advice;
}

Advice advise(const std::string& model, const Config& config, const std::vector<Candidate>& candidates, int ranks,
              const Hardware& hardware) {
  Roofline roofline(hardware);
  return advise(model, config, candidates, ranks, absent_target(hardware, roofline));
}

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
