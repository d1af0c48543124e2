#include "tools/lab/advise/prediction.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

// Bytes sent in these phases travel beside their kernels.
constexpr std::string_view kGradients[] = {"backward", "reduce"}, kRecords[] = {"decide"}, kWeights[] = {"update"};
constexpr std::span<const std::string_view> kBesideEachOther[] = {kGradients, kRecords, kWeights};

double sum_of(const PhaseSeconds& seconds) {
  double sum = 0.0;
  for (const auto& [phase, part] : seconds) sum += part;
  return sum;
}

// Link time that the kernels beside it do not hide.
double exposed(const PhaseSeconds& kernels, const PhaseSeconds& links) {
  const auto in = [](const PhaseSeconds& seconds, std::string_view phase) {
    const auto found = seconds.find(phase);
    return found == seconds.end() ? 0.0 : found->second;
  };
  double sum = 0.0;
  for (const auto& phases : kBesideEachOther) {
    double waiting = 0.0;
    for (const std::string_view phase : phases) waiting += in(links, phase) - in(kernels, phase);
    sum += std::max(0.0, waiting);
  }
  return sum;
}

}  // namespace

CostModel::Cost Roofline::cost(const KernelCall& call) const {
  const double memory = call.work.bytes / hardware_.memory_bandwidth;
  double products = 0.0, dynamic = call.work.bytes * hardware_.joules_per_byte;
  if (call.work.flops > 0.0) {
    const auto units = units_for(hardware_, call.format);
    MANTISSA_CHECK(units.has_value(), "[roofline] {} has no rate for products in {}", hardware_.name,
                   name(call.format));
    products = call.work.flops / units->flops;
    dynamic += call.work.flops * units->products * hardware_.joules_per_flop(units->format);
  }
  const double seconds = std::max(memory, products);
  return {.seconds = seconds,
          .memory_bound = memory > products,
          .joules = std::min(hardware_.watts * seconds, hardware_.idle_watts * seconds + dynamic)};
}

std::optional<Rates> Roofline::rates() const {
  Rates rates{.bytes = hardware_.memory_bandwidth};
  for (const ProductFormat format : kAllProductFormats) {
    if (const auto units = units_for(hardware_, format)) rates.flops[static_cast<size_t>(format)] = units->flops;
  }
  return rates;
}

std::vector<CostModel::Cost> Roofline::costs(const StepCalls& step) {
  std::vector<Cost> costs;
  for (const KernelCall& call : step.calls) costs.push_back(cost(call));
  return costs;
}

std::string in_three_digits(double value) {
  if (!std::isfinite(value) || value == 0.0) return fmt::format("{}", value);
  const double last_digit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 2.0);
  return fmt::format("{:.12g}", std::round(value / last_digit) * last_digit);
}

Prediction predict(const StepCalls& step, CostModel& model) {
  Prediction prediction;
  const std::vector<CostModel::Cost> costs = model.costs(step);
  std::map<std::tuple<std::string_view, std::string_view, ProductFormat>, OpCost> sums;
  PhaseSeconds kernels;
  for (size_t index = 0; index < step.calls.size(); ++index) {
    const KernelCall& call = step.calls[index];
    const CostModel::Cost& cost = costs[index];
    const ProductFormat format = call.work.flops > 0.0 ? call.format : ProductFormat::kF32;
    OpCost& sum = sums[{call.phase, call.op, format}];
    sum.phase = call.phase;
    sum.op = call.op;
    sum.format = format;
    ++sum.calls;
    sum.flops += call.work.flops;
    sum.bytes += call.work.bytes;
    sum.seconds += cost.seconds;
    sum.memory_bound_seconds += cost.memory_bound ? cost.seconds : 0.0;
    kernels[call.phase] += cost.seconds;
    prediction.kernel_seconds += cost.seconds;
    prediction.joules += cost.joules;
  }
  for (const auto& [key, sum] : sums) prediction.ops.push_back(sum);
  std::ranges::stable_sort(prediction.ops, std::greater(), &OpCost::seconds);
  prediction.sent_bytes = step.sent();
  for (const auto& [phase, bytes] : step.sent_bytes) prediction.link_seconds[phase] = bytes / model.link_bandwidth();
  prediction.exposed_seconds = exposed(kernels, prediction.link_seconds);
  prediction.joules += model.power().idle * prediction.exposed_seconds;
  prediction.most_joules = model.power().most * prediction.step_seconds() / kAttainedShare;
  return prediction;
}

std::string launches_text(const Prediction& prediction) {
  int64_t calls = 0;
  for (const OpCost& op : prediction.ops) calls += op.calls;
  const double launches = kLaunchSeconds * static_cast<double>(calls);
  if (launches <= prediction.kernel_seconds) return "";
  return fmt::format(
      "Times, speed-ups and energies mean nothing here: {} of a step take {} ms at least, and to launch them takes "
      "about {} ms. Give larger batches or a larger model, or measure on the device.",
      counted(calls, "kernel"), in_three_digits(1e3 * prediction.kernel_seconds), in_three_digits(1e3 * launches));
}

double Prediction::sent_seconds() const { return sum_of(link_seconds); }

Rates rates_reached(const std::vector<const Prediction*>& steps) {
  Rates rates;
  for (const Prediction* const step : steps) {
    for (const OpCost& cost : step->ops) {
      if (cost.seconds <= 0.0) continue;
      double& flops = rates.flops[static_cast<size_t>(cost.format)];
      flops = std::max(flops, cost.flops / cost.seconds);
      rates.bytes = std::max(rates.bytes, cost.bytes / cost.seconds);
    }
  }
  return rates;
}

double speedup_bound(const Prediction& fp32, const Prediction& other, const Rates& rates) {
  PhaseSeconds products, memory;
  for (const OpCost& cost : other.ops) {
    if (cost.flops > 0.0) products[cost.phase] += cost.flops / rates.flops[static_cast<size_t>(cost.format)];
    if (cost.bytes > 0.0) memory[cost.phase] += cost.bytes / rates.bytes;
  }
  PhaseSeconds kernels = products;
  for (const auto& [phase, seconds] : memory) kernels[phase] = std::max(kernels[phase], seconds);
  return fp32.step_seconds() / (sum_of(kernels) + exposed(kernels, other.link_seconds));
}

Target absent_target(const Hardware& hardware, CostModel& costs) {
  return {.title = std::string(hardware.title),
          .costs = &costs,
          .hardware = &hardware,
          .fp8_gemm_support = hardware.fp8_gemm_support,
          .memory_bytes = hardware.memory_bytes};
}

Target present_target(const Config& config, Backend& backend, CostModel& costs) {
  const bool packs = config.train.keeps_packed_weights(1) && backend.device().kind == Device::Kind::kCpu;
  return {.title = backend.describe(),
          .costs = &costs,
          .fp8_gemm_support = backend.fp8_gemm_support(),
          .packing = packs ? &backend : nullptr};
}

TargetStep step_on(const Target& target, const Config& config, int ranks) {
  return {.memory = predict_memory_table(
              config, DryRunOptions{.ranks = ranks, .support = target.fp8_gemm_support, .packing = target.packing}),
          .calls = walk_calls(config, ranks, target.fp8_gemm_support, target.packing)};
}

}  // namespace mantissa
