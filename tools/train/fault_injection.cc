#include "tools/train/fault_injection.h"

#include <limits>

namespace mantissa {

FaultInjection::FaultInjection(const TestConfig& config, int rank, Backend& backend, Stream& stream)
    : config_(config), rank_(rank), backend_(backend), stream_(stream) {}

void FaultInjection::on_gradient(int64_t step, const Parameter& parameter) const {
  for (const GradientInjection& fault : config_.gradients) {
    if (fault.step != step + 1 || fault.rank != rank_ || fault.parameter != parameter.name) continue;
    if (fault.element < 0 || fault.element >= parameter.numel()) {
      throw ConfigError(fmt::format("test.gradients: '{}' has {} elements, there is no element {}", parameter.name,
                                    parameter.numel(), fault.element));
    }
    overwrite(parameter.gradient, fault.element, fault.value);
  }
}

std::function<void(std::string_view, std::string_view, Tensor&)> FaultInjection::on_output(int64_t step) const {
  for (const ActivationInjection& fault : config_.activations) {
    if (fault.step != step + 1 || fault.rank != rank_) continue;
    return [this, &fault](std::string_view layer, std::string_view op, Tensor& output) {
      if (layer == fault.layer && op == name(fault.op)) overwrite(output, 0, fault.value);
    };
  }
  return nullptr;
}

void FaultInjection::overwrite(const Tensor& tensor, int64_t element, InjectedValue value) const {
  using Limits = std::numeric_limits<float>;
  backend_.fill(tensor.slice(element, 1), value == InjectedValue::kInf ? Limits::infinity() : Limits::quiet_NaN(),
                stream_);
}

}  // namespace mantissa
