#include "tools/train/memory_table.h"

#include "core/backend/registry.h"
#include "tools/config/precision_phases.h"
#include "tools/train/device_choice.h"
#include "tools/train/gathered_codes.h"
#include "tools/train/precision_effects.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

// The device that packs weights in steps of `ranks` ranks; nullptr where none does.
std::unique_ptr<Backend> packing_device(const Config& config, int ranks) {
  if (!config.train.keeps_packed_weights(ranks) || config.device == "cuda") return nullptr;
  const DeviceChoice choice = choose_device(config.device, 0);
  return choice.backend == "cpu" ? create_backend(choice.backend) : nullptr;
}

}  // namespace

MemoryTable predict_memory_table(const Config& config, int ranks, ContributionPath path, Fp8GemmSupport support) {
  const AutocastPolicy policy(config.autocast());
  ParameterSet parameters;
  make_model(config, policy, parameters);
  const BucketLayout layout = lay_out(config, parameters, ranks);
  const CodedWeights coded = gathered_codes(config, parameters, policy);
  // Lifts may leave nothing of what a setting is about: that is no mistake of who wrote it.
  if (config.lifts.empty()) {
    require_effects(config);
    require_gather_effect(config, layout, path, coded);
  }
  const StepMemory step = walk_step(config, packing_device(config, ranks).get(), support);
  return {.parameters = parameters.numel(),
          .state = predict_memory(layout, resolve_reducer(config, ranks), config.optimizer.adamw, path, coded),
          .activations = step.activations,
          .casts = step.casts + static_cast<size_t>(ranks) * step.amaxes,
          .packed = step.packed};
}

std::vector<MemoryTable> predict_memory_tables(const Config& config, int ranks, ContributionPath path) {
  std::vector<MemoryTable> tables;
  for (int phase = 0; phase < phase_count(config); ++phase) {
    try {
      tables.push_back(predict_memory_table(in_phase(config, phase), ranks, path));
    } catch (const ConfigError& error) {
      if (phase == 0 && !adapts(config)) throw;
      throw ConfigError(fmt::format("{}: {}", phase_name(config, phase), error.what()));
    }
  }
  return tables;
}

MemoryTable measure_memory_table(const Session& session) {
  const DerivedWeights& weights = session.runtime.derived_weights;
  return {.parameters = session.runtime.parameters.numel(),
          .state = measure_memory(session.buckets, session.reducer, session.optimizer),
          .activations = session.runtime.arena->peak_bytes(),
          .casts = weights.size_bytes(DerivedKind::kCast) + weights.size_bytes(DerivedKind::kRounded) +
                   session.runtime.delayed_scales->size_bytes() + session.amaxes.size_bytes(),
          .packed = weights.size_bytes(DerivedKind::kPacked)};
}

std::string to_text(const MemoryTable& predicted, const MemoryTable* measured) {
  std::string text;
  const auto row = [&](const char* category, size_t expected, size_t found) {
    text += fmt::format("\n  {:<12} {:>10.1f} MiB", category, static_cast<double>(expected) / kMib);
    if (measured == nullptr) return;
    text += fmt::format("  measured {:>10.1f} MiB", static_cast<double>(found) / kMib);
    if (expected > 0) {
      text += fmt::format("  {:+.1f} %", 100.0 * (static_cast<double>(found) / static_cast<double>(expected) - 1.0));
    }
  };
  const MemoryTable& found = measured ? *measured : predicted;
  row("weights", predicted.state.weights, found.state.weights);
  row("gradients", predicted.state.gradients, found.state.gradients);
  row("masters", predicted.state.masters, found.state.masters);
  row("moments", predicted.state.moments, found.state.moments);
  row("activations", predicted.activations, found.activations);
  row("buffers", predicted.state.buffers + predicted.casts, found.state.buffers + found.casts);
  if (predicted.packed + found.packed > 0) row("packed", predicted.packed, found.packed);
  row("total", predicted.total(), found.total());
  const auto each = [&](size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(found.parameters); };
  text += fmt::format("\n  bytes a parameter: {:.2f} of weights, {:.2f} of masters, {:.2f} of moments",
                      each(found.state.weights), each(found.state.masters), each(found.state.moments));
  return text;
}

}  // namespace mantissa
