#include <fmt/core.h>

#include "tools/lab/advise/advice.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;
constexpr size_t kOpsShown = 16;

std::string hardware_text(const Hardware& hardware) {
  std::string text = fmt::format("\n{} by {}:\n ", hardware.title, hardware.source);
  for (const ProductFormat format : kAllProductFormats) {
    if (hardware.peak(format) > 0.0) text += fmt::format(" {} {:.1f},", name(format), hardware.peak(format) * 1e-12);
  }
  text.pop_back();
  return text + fmt::format(
                    " TFLOP/s; memory {:.0f} GB at {:.0f} GB/s; link {:.0f} GB/s one way; {:.0f} W; {:.1f} pJ a "
                    "byte of memory\n",
                    hardware.memory_bytes * 1e-9, hardware.memory_bandwidth * 1e-9, hardware.link_bandwidth * 1e-9,
                    hardware.watts, hardware.joules_per_byte * 1e12);
}

// A number, or an empty column.
std::string column(int width, int decimals, double value) {
  return value > 0.0 ? fmt::format("{:>{}.{}f}", value, width, decimals) : std::string(static_cast<size_t>(width), ' ');
}

std::string row(const Evaluation& found, const Advice& advice) {
  std::string text = fmt::format("\n{:<15}{:<15}", found.name + (found.is_configured ? " *" : ""), name(found.support));
  if (!found.runs()) return text;
  const Prediction& prediction = found.prediction;
  const double seconds = prediction.step_seconds();
  text += fmt::format("{:>12.3f}{:>13.0f}", 1e3 * seconds, static_cast<double>(advice.tokens_per_step) / seconds);
  text += column(8, 2, found.speedup) + column(8, 2, found.bound);
  text += fmt::format("{:>12.1f}", static_cast<double>(found.memory.total()) / kMib);
  text += column(11, 4, prediction.joules) + column(10, 3, prediction.sent_bytes * 1e-6);
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string ops_text(const Evaluation& found) {
  std::string text = fmt::format("\nwhere the time of a step in {} goes:\n{:<10}{:<24}{:>7}{:>12}{:>8}{:>12}{:>10}",
                                 found.name, "phase", "operation", "calls", "ms", "%", "GFLOP/s", "GB/s");
  const double step = found.prediction.step_seconds();
  size_t shown = 0;
  for (const OpCost& cost : found.prediction.ops) {
    if (++shown > kOpsShown) break;
    const std::string op = cost.flops > 0.0 ? fmt::format("{} {}", cost.op, name(cost.format)) : std::string(cost.op);
    text += fmt::format("\n{:<10}{:<24}{:>7}{:>12.4f}{:>8.1f}", cost.phase, op, cost.calls, 1e3 * cost.seconds,
                        100.0 * cost.seconds / step);
    text += column(12, 1, cost.flops / cost.seconds * 1e-9) + column(10, 2, cost.bytes / cost.seconds * 1e-9);
  }
  if (found.prediction.exposed_seconds > 0.0) {
    text += fmt::format("\n{:<10}{:<24}{:>7}{:>12.4f}{:>8.1f}", "", "waiting for links", "",
                        1e3 * found.prediction.exposed_seconds, 100.0 * found.prediction.exposed_seconds / step);
  }
  return text + "\n";
}

std::string memory_text(const Evaluation& found) {
  const MemoryTable& memory = found.memory;
  std::string text = fmt::format("\nmemory of a rank in {}, MiB:", found.name);
  const auto add = [&](const char* category, size_t bytes) {
    text += fmt::format(" {} {:.1f},", category, static_cast<double>(bytes) / kMib);
  };
  add("weights", memory.state.weights);
  add("gradients", memory.state.gradients);
  add("masters", memory.state.masters);
  add("moments", memory.state.moments);
  add("activations", memory.activations);
  add("buffers", memory.state.buffers + memory.casts);
  if (memory.packed > 0) add("packed", memory.packed);
  text.pop_back();
  return text + "\n";
}

}  // namespace

std::string to_text(const Advice& advice) {
  std::string text = advice.verdict + "\n";
  text += fmt::format("\n{}: {:.2f} million parameters, {} tokens a step, {} rank{}\n", advice.model,
                      static_cast<double>(advice.parameters) * 1e-6, advice.tokens_per_step, advice.ranks,
                      advice.ranks == 1 ? "" : "s");
  text += fmt::format("\n{:<15}{:<15}{:>12}{:>13}{:>8}{:>8}{:>12}{:>11}{:>10}", "precision", "runs", "ms a step",
                      "tokens/s", "x fp32", "bound", "MiB a rank", "J a rank", "MB sent");
  for (const Evaluation& found : advice.evaluations) text += row(found, advice);
  text += "\n";
  for (const Evaluation& found : advice.evaluations) text += fmt::format("\n{}: {}", found.name, found.reason);
  text += "\n";
  const Evaluation& best = advice.evaluations.front();
  if (best.runs()) text += ops_text(best) + memory_text(best);
  if (advice.hardware) text += hardware_text(*advice.hardware);
  if (advice.hardware) {
    text +=
        "Times are a roofline of the data sheet: no step is faster, real ones are slower. Energy has all of the power "
        "in the\narithmetic at its peak, and the traffic of memory besides; of a rank, links left out.\n";
  }
  return text;
}

}  // namespace mantissa
