#include "tools/lab/advise/prediction.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "core/base/check.h"

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

// An op in a phase, in all formats.
struct OpParts {
  double seconds = 0, flops = 0, fp32_bytes = 0;
  double fp32_product_seconds = 0;
};

std::map<std::pair<std::string_view, std::string_view>, OpParts> parts_of(const Prediction& prediction) {
  std::map<std::pair<std::string_view, std::string_view>, OpParts> parts;
  for (const OpCost& cost : prediction.ops) {
    OpParts& part = parts[{cost.phase, cost.op}];
    part.seconds += cost.seconds;
    part.flops += cost.flops;
    part.fp32_bytes += cost.fp32_bytes;
    if (cost.flops > 0.0 && cost.format == ProductFormat::kF32) part.fp32_product_seconds += cost.seconds;
  }
  return parts;
}

// Seconds of the op in the other step that a format does not touch.
double staying(const OpParts& fp32, const OpParts& other) {
  // Not by the share of FLOP: memory-bound calls take more time for a FLOP than others.
  if (fp32.flops > 0.0) return other.fp32_product_seconds;
  const double share = fp32.fp32_bytes > 0.0 ? std::min(1.0, other.fp32_bytes / fp32.fp32_bytes) : 1.0;
  return std::min(fp32.seconds * share, other.seconds);
}

}  // namespace

CostModel::Cost Roofline::cost(const KernelCall& call) const {
  const double memory = call.work.bytes / hardware_.memory_bandwidth;
  double products = 0.0, joules = call.work.bytes * hardware_.joules_per_byte;
  if (call.work.flops > 0.0) {
    const auto units = units_for(hardware_, call.format);
    MANTISSA_CHECK(units.has_value(), "[roofline] {} has no rate for products in {}", hardware_.name,
                   name(call.format));
    products = call.work.flops / units->flops;
    joules += call.work.flops * units->products * hardware_.joules_per_flop(units->format);
  }
  return {.seconds = std::max(memory, products), .memory_bound = memory > products, .joules = joules};
}

std::vector<CostModel::Cost> Roofline::costs(const StepCalls& step) {
  std::vector<Cost> costs;
  for (const KernelCall& call : step.calls) costs.push_back(cost(call));
  return costs;
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
    sum.fp32_bytes += call.fp32_bytes();
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
  return prediction;
}

double Prediction::sent_seconds() const { return sum_of(link_seconds); }

double speedup_bound(const Prediction& fp32, const Prediction& other) {
  const auto before = parts_of(fp32), after = parts_of(other);
  PhaseSeconds kernels;
  for (const auto& [place, part] : before) {
    if (const auto found = after.find(place); found != after.end()) {
      kernels[place.first] += staying(part, found->second);
    }
  }
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
