#include "tools/train/fault_injection.h"

#include <algorithm>
#include <limits>

namespace mantissa {

FaultInjection::FaultInjection(const TestConfig& config, int rank, Backend& backend, Stream& stream)
    : config_(config), rank_(rank), backend_(backend), stream_(stream) {}

void FaultInjection::on_gradient(int64_t step, const Parameter& parameter) const {
  for (const GradientInjection& fault : config_.gradients) {
    if (fault.step != step + 1 || fault.rank != rank_ || fault.parameter != parameter.name) continue;
    overwrite(parameter.gradient, fault.element, fault.value);
  }
}

std::function<void(std::string_view, std::string_view, Tensor&)> FaultInjection::on_op(int64_t step, Pass pass) const {
  const bool planned =
      std::any_of(config_.activations.begin(), config_.activations.end(),
                  [&](const ActivationInjection& fault) { return fault.pass == pass && due(fault, step); });
  if (!planned) return nullptr;
  return [this, step, pass](std::string_view layer, std::string_view op, Tensor& made) {
    for (const ActivationInjection& fault : config_.activations) {
      if (fault.pass != pass || !due(fault, step) || layer != fault.layer || op != name(fault.op)) continue;
      overwrite(made, 0, fault.value);
      injected_.insert(&fault);
    }
  };
}

void FaultInjection::require_injected(int64_t step) const {
  for (const ActivationInjection& fault : config_.activations) {
    if (!due(fault, step) || injected_.contains(&fault)) continue;
    throw ConfigError(fmt::format("test.activations: no op {} ran in a layer '{}' in step {}", name(fault.op),
                                  fault.layer, step + 1));
  }
}

bool FaultInjection::due(const ActivationInjection& fault, int64_t step) const {
  return fault.step == step + 1 && fault.rank == rank_;
}

void FaultInjection::overwrite(const Tensor& tensor, int64_t element, InjectedValue value) const {
  using Limits = std::numeric_limits<float>;
  backend_.fill(tensor.slice(element, 1), value == InjectedValue::kInf ? Limits::infinity() : Limits::quiet_NaN(),
                stream_);
}

}  // namespace mantissa
