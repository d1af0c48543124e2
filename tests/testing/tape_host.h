// TapeHost: everything that a tape needs (backend, stream, arena, derived weights), for tests of ops and models.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd/tape.h"
#include "core/backend/registry.h"

namespace mantissa::testing {

// The GPU's if the test program links one, real or emulated; else the CPU's.
inline std::unique_ptr<Backend> create_test_backend() {
  const std::vector<std::string> names = backend_names();
  return create_backend(std::count(names.begin(), names.end(), "cuda") ? "cuda" : "cpu");
}

class TapeHost {
 public:
  explicit TapeHost(size_t arena_bytes = size_t{64} << 20)
      : backend_(create_test_backend()),
        stream_(backend_->create_stream()),
        arena_(std::make_unique<Arena>(backend_->reserve(arena_bytes))),
        derived_weights_(*backend_) {}

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  // An emulated device. Tests of thousands of passes run only a sample on it.
  bool is_slow() const { return backend_->describe().find("emulated") != std::string::npos; }
  // A real GPU. Its library chooses kernels by shape, so products of other shapes differ in their last bits.
  bool is_gpu() const { return backend_->device().kind == Device::Kind::kCuda && !is_slow(); }
  Arena& arena() { return *arena_; }
  DerivedWeights& derived_weights() { return derived_weights_; }
  // `policy` must outlive the tape.
  std::unique_ptr<Tape> tape(const PrecisionPolicy& policy, TapeOptions options = {}, float loss_gradient = 1.0f) {
    if (!options.loss_gradient.defined()) options.loss_gradient = tensor({loss_gradient}, {1});
    if (!options.random.step.defined()) options.random.step = step(0);
    return std::make_unique<Tape>(*backend_, *stream_, *arena_, policy, derived_weights_, std::move(options));
  }

  // A tensor outside of the arena, rounded to `dtype`.
  Tensor tensor(const std::vector<float>& values, Shape shape, DType dtype = DType::kF32);
  Tensor tensor(const std::vector<int32_t>& values) {
    Tensor result = backend_->make_tensor(DType::kI32, {static_cast<int64_t>(values.size())}, "test");
    backend_->upload(values.data(), result, *stream_);
    return result;
  }
  // The step tensor for RandomKey.
  Tensor step(int32_t number) { return tensor(std::vector<int32_t>{number}); }
  // Any float dtype, widened.
  std::vector<float> values(const Tensor& tensor);
  float scalar(const Tensor& tensor) { return values(tensor).at(0); }

  // Zeroed weights in the working dtype and zeroed gradients, each in separate memory.
  void bind(ParameterSet& parameters) {
    for (int i = 0; i < parameters.size(); ++i) {
      Parameter& parameter = parameters[i];
      parameter.weight = backend_->make_tensor(parameter.working_dtype, parameter.shape, "test weight");
      if (!parameter.is_trainable) continue;
      parameter.gradient = backend_->make_tensor(wide_of(parameter.working_dtype), parameter.shape, "test gradient");
    }
  }
  void set_weight(Parameter& parameter, const std::vector<float>& values);
  void initialize(ParameterSet& parameters, uint64_t seed) {
    for (int i = 0; i < parameters.size(); ++i) {
      std::vector<float> values(static_cast<size_t>(parameters[i].numel()));
      initial_values(parameters[i], seed, 0, parameters[i].numel(), values.data());
      set_weight(parameters[i], values);
    }
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> arena_;
  DerivedWeights derived_weights_;
};

}  // namespace mantissa::testing
