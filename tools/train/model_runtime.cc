#include "tools/train/model_runtime.h"

#include "amp/working_dtype.h"
#include "core/backend/registry.h"

namespace mantissa {
namespace {

// Address space of a step's activations; pages are taken as they are touched.
constexpr size_t kArenaBytes = size_t{1} << 40;

}  // namespace

std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters) {
  auto model = create_model(config.model, parameters);
  assign_working_dtypes(parameters, policy, config.precision.weights);
  return model;
}

ModelRuntime::ModelRuntime(const Config& config)
    : backend(create_backend(config.device == "auto" ? "cpu" : config.device)),
      stream(backend->create_stream()),
      policy(config.precision.autocast()),
      model(make_model(config, policy, parameters)),
      casts(*backend),
      arena(std::make_unique<Arena>(backend->reserve(kArenaBytes))) {}

}  // namespace mantissa
