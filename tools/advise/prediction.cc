#include "tools/advise/prediction.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/base/check.h"

namespace mantissa {
namespace {

// What of an op is fp32: of its products if it has any, else of its traffic.
struct Fp32Part {
  double flops = 0, bytes = 0, seconds = 0;
};

std::map<std::string_view, Fp32Part> by_op(const Prediction& prediction) {
  std::map<std::string_view, Fp32Part> parts;
  for (const OpCost& cost : prediction.ops) {
    Fp32Part& part = parts[cost.op];
    part.flops += cost.fp32_flops;
    part.bytes += cost.fp32_bytes;
    part.seconds += cost.seconds;
  }
  return parts;
}

// What is sent in these phases and not hidden behind their kernels.
double exposed(const StepCalls& step, const Prediction& prediction, std::initializer_list<std::string_view> phases,
               double bandwidth) {
  double sent = 0.0, kernels = 0.0;
  for (const std::string_view phase : phases) {
    if (const auto found = step.sent_bytes.find(phase); found != step.sent_bytes.end()) sent += found->second;
    for (const OpCost& cost : prediction.ops) {
      if (cost.phase == phase) kernels += cost.seconds;
    }
  }
  return std::max(0.0, sent / bandwidth - kernels);
}

}  // namespace

CostModel::Cost Roofline::cost(const KernelCall& call) const {
  Cost cost;
  const double memory = call.work.bytes / hardware_.memory_bandwidth;
  double products = 0.0;
  cost.joules = call.work.bytes * hardware_.joules_per_byte;
  if (call.work.flops > 0.0) {
    const auto units = units_for(hardware_, call.format);
    MANTISSA_CHECK(units.has_value(), "[roofline] {} has no rate for products in {}", hardware_.name,
                   name(call.format));
    products = call.work.flops / units->flops;
    cost.joules += call.work.flops * units->products * hardware_.joules_per_flop(units->format);
  }
  cost.memory_bound = memory > products;
  cost.seconds = std::max(memory, products);
  return cost;
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
  for (size_t index = 0; index < step.calls.size(); ++index) {
    const KernelCall& call = step.calls[index];
    const CostModel::Cost& cost = costs[index];
    const bool multiplies = call.work.flops > 0.0;
    const ProductFormat format = multiplies ? call.format : ProductFormat::kF32;
    OpCost& sum = sums[{call.phase, call.op, format}];
    sum.phase = call.phase;
    sum.op = call.op;
    sum.format = format;
    ++sum.calls;
    sum.flops += call.work.flops;
    sum.bytes += call.work.bytes;
    sum.fp32_flops += call.format == ProductFormat::kF32 ? call.work.flops : 0.0;
    sum.fp32_bytes += call.fp32_bytes();
    sum.seconds += cost.seconds;
    sum.memory_bound_seconds += cost.memory_bound ? cost.seconds : 0.0;
    prediction.kernel_seconds += cost.seconds;
    prediction.joules += cost.joules;
  }
  for (const auto& [key, sum] : sums) prediction.ops.push_back(sum);
  std::stable_sort(prediction.ops.begin(), prediction.ops.end(),
                   [](const OpCost& a, const OpCost& b) { return a.seconds > b.seconds; });
  prediction.sent_bytes = step.sent();
  prediction.sent_seconds = prediction.sent_bytes / model.link_bandwidth();
  prediction.exposed_seconds = exposed(step, prediction, {"backward", "reduce"}, model.link_bandwidth()) +
                               exposed(step, prediction, {"decide"}, model.link_bandwidth()) +
                               exposed(step, prediction, {"update"}, model.link_bandwidth());
  return prediction;
}

double speedup_bound(const Prediction& fp32, const Prediction& other) {
  const auto before = by_op(fp32), after = by_op(other);
  double stays = fp32.exposed_seconds;
  for (const auto& [op, part] : before) {
    const double was = part.flops > 0.0 ? part.flops : part.bytes;
    if (was <= 0.0) {  // never fp32
      stays += part.seconds;
      continue;
    }
    const auto found = after.find(op);
    if (found == after.end()) continue;
    const double is = part.flops > 0.0 ? found->second.flops : found->second.bytes;
    stays += part.seconds * std::min(1.0, is / was);
  }
  return fp32.step_seconds() / stays;
}

}  // namespace mantissa
