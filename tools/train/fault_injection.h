// Faults on purpose, for tests of what the program does about them (configuration section `test`).
#pragma once

#include <set>

#include "core/autograd/tape.h"
#include "tools/config/config.h"

namespace mantissa {

class FaultInjection {
 public:
  FaultInjection(const TestConfig& config, int rank, Backend& backend, Stream& stream);

  // `step` counts from 0 as everywhere in the code; the configuration counts from 1, as log lines do.
  // Overwrites an element of the parameter's local gradient if a fault is planned for it in this step on this rank.
  void on_gradient(int64_t step, const Parameter& parameter) const;
  // Overwrites the first element of what an op makes in a pass; a hook for TapeOptions::after_op, or after_backward,
  // empty if nothing is planned.
  std::function<void(std::string_view layer, std::string_view op, Tensor& made)> on_op(int64_t step, Pass pass) const;

  // ConfigError if an activation's fault was planned for the step on this rank and no op matched it.
  void require_injected(int64_t step) const;

 private:
  bool due(const ActivationInjection& fault, int64_t step) const;
  void overwrite(const Tensor& tensor, int64_t element, InjectedValue value) const;

  const TestConfig& config_;
  int rank_;
  Backend& backend_;
  Stream& stream_;
  mutable std::set<const ActivationInjection*> injected_;
};

}  // namespace mantissa
