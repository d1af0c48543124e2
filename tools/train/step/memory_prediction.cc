#include "tools/train/step/memory_prediction.h"

#include <nlohmann/json.hpp>

#include "core/backend/registry.h"
#include "core/base/host_memory.h"
#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

// The device that packs weights in steps of `ranks` ranks; nullptr if the weights are not packed.
std::unique_ptr<Backend> packing_device(const Config& config, int ranks) {
  if (!config.train.keeps_packed_weights(ranks) || !computes_on_host(config.device, 0)) return nullptr;
  return create_backend(choose_device(config.device, 0).backend);
}

}  // namespace

MemoryTable measure_memory_table(const Session& session) {
  const ModelRuntime& runtime = session.runtime;
  const DerivedWeights& weights = runtime.derived_weights;
  return {.parameters = runtime.parameters.numel(),
          .state = measure_memory(session.sharded.buckets, session.sharded.reducer, session.sharded.optimizer),
          .activations = runtime.arena->peak_bytes(),
          .casts = weights.size_bytes(DerivedKind::kCast) + weights.size_bytes(DerivedKind::kRounded) +
                   runtime.delayed_scales->size_bytes() + session.amaxes.size_bytes(),
          .packed = weights.size_bytes(DerivedKind::kPacked)};
}

MemoryTable predict_memory_table(const Config& config, int ranks, ContributionPath path, Fp8GemmSupport support) {
  const std::unique_ptr<Backend> packing = packing_device(config, ranks);
  return predict_memory_table(config, {.ranks = ranks, .path = path, .support = support, .packing = packing.get()});
}

MemoryTable predict_memory_table(const Config& config, const DryRunOptions& options) {
  DryRun dry(config, options);
  dry.run_all_steps();
  return measure_memory_table(dry.session());
}

std::vector<MemoryTable> predict_memory_tables(const Config& config, int ranks, ContributionPath path) {
  std::vector<MemoryTable> tables;
  for (int phase = 0; phase < phase_count(config); ++phase) {
    try {
      tables.push_back(predict_memory_table(in_phase(config, phase), ranks, path));
    } catch (const ConfigError& error) {
      if (phase == 0 && !adapts(config)) throw;
      throw ConfigError(fmt::format("{}: {}", phase_path(config, phase), error.what()));
    }
  }
  return tables;
}

void require_memory(const Config& run, const std::vector<MemoryTable>& predicted, const Communicator& communicator) {
  if (!computes_on_host(run.device, communicator.local_rank())) return;
  const auto needs = [](const MemoryTable& table) { return table.total(); };
  const MemoryTable& most = *std::ranges::max_element(predicted, {}, needs);
  if (most.total() <= host_memory().total_bytes) return;
  throw MemoryError(fmt::format("a rank needs {:.1f} GiB of memory by prediction:{}\n{}. {}",
                                static_cast<double>(most.total()) / kGib, to_text(most), describe_host_memory(),
                                kLessMemory));
}

std::string to_text(const MemoryTable& table) {
  std::string text;
  const auto row = [&](const char* category, size_t bytes) {
    text += fmt::format("\n  {:<12} {:>10.1f} MiB", category, static_cast<double>(bytes) / kMib);
  };
  row("weights", table.state.weights);
  row("gradients", table.state.gradients);
  row("masters", table.state.masters);
  row("moments", table.state.moments);
  row("activations", table.activations);
  row("buffers", table.state.buffers + table.casts);
  if (table.packed > 0) row("packed", table.packed);
  row("total", table.total());
  const auto each = [&](size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(table.parameters); };
  text += fmt::format("\n  bytes a parameter: {:.2f} of weights, {:.2f} of masters, {:.2f} of moments",
                      each(table.state.weights), each(table.state.masters), each(table.state.moments));
  return text;
}

std::string to_line(const MemoryTable& table) {
  const bool in_gib = static_cast<double>(table.total()) >= 1000.0 * kMib;
  const auto number = [&](size_t bytes) { return static_cast<double>(bytes) / (in_gib ? 1024.0 * kMib : kMib); };
  return fmt::format("{:.3g} {} (weights and gradients {:.3g}, optimizer {:.3g}, activations {:.3g}, buffers {:.3g})",
                     number(table.total()), in_gib ? "GiB" : "MiB", number(table.state.weights + table.state.gradients),
                     number(table.state.masters + table.state.moments), number(table.activations),
                     number(table.state.buffers + table.casts + table.packed));
}

void to_json(nlohmann::json& json, const MemoryTable& table) {
  json = {{"weights", table.state.weights},
          {"gradients", table.state.gradients},
          {"masters", table.state.masters},
          {"moments", table.state.moments},
          {"activations", table.activations},
          {"buffers", table.state.buffers + table.casts},
          {"packed", table.packed}};
}

}  // namespace mantissa
