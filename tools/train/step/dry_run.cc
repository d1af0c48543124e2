#include "tools/train/step/dry_run.h"

#include <nlohmann/json.hpp>

#include "core/backend/decorators.h"
#include "core/backend/registry.h"
#include "core/base/host_memory.h"
#include "models/model.h"
#include "tools/config/precision_phases.h"
#include "tools/model/generate/generator.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

// Rank 0 of ranks that do not exist. Collectives move nothing.
class DryRanks final : public Communicator {
 public:
  DryRanks(int ranks, ContributionPath path) : Communicator({.size = ranks, .local_size = ranks}), path_(path) {}

  std::string name() const override { return "dry run"; }
  bool shares_node_memory() const override { return path_ == ContributionPath::kInPlace; }

  std::unique_ptr<Work> all_to_all(const Tensor&, const Tensor&, Stream&) override {
    return std::make_unique<NoWork>();
  }
  std::unique_ptr<Work> all_gather(const Tensor&, const Tensor&, Stream&) override {
    return std::make_unique<NoWork>();
  }
  std::unique_ptr<Work> node_barrier(Stream&) override { return std::make_unique<NoWork>(); }
  std::shared_ptr<Storage> allocate_shared(size_t bytes, const char*) override {
    return shares_node_memory() ? backend_.reserve(bytes) : nullptr;
  }
  SharedRows rows_of_all(const Tensor& mine) const override {
    if (!shares_node_memory()) return {};
    const auto all =
        std::make_shared<Storage>(mine.raw(), mine.size_bytes() * static_cast<size_t>(size()), Device{}, nullptr);
    return {.rows = Tensor(all, mine.dtype(), Shape{size(), mine.numel()}), .stride = mine.numel()};
  }
  // Every rank's bytes are this one's.
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    std::vector<std::byte> all;
    for (int rank = 0; rank < size(); ++rank) all.insert(all.end(), mine.begin(), mine.end());
    return all;
  }
  void barrier() override {}
  void abort(int) override { throw Error(ExitCode::kInternal, "a dry run has no ranks to end"); }

 private:
  const ContributionPath path_;
  DryRunBackend backend_;
};

class NoBatches final : public Batches {
 public:
  void train(uint64_t, const SequenceSpans&) const override {}
  void validation(uint64_t, const SequenceSpans&) const override {}
  uint64_t fingerprint() const override { return 0; }
  std::vector<std::string> describe() const override { return {}; }
};

SessionParts dry_parts(std::unique_ptr<Backend> backend, std::unique_ptr<StepProfiler> profiler) {
  return {.backend = std::move(backend), .profiler = std::move(profiler), .batches = [](const Config&, Objective) {
            return std::make_shared<NoBatches>();
          }};
}

Config without_surroundings(Config config) {
  config.profile = false;
  config.cuda.graph = false;
  config.test = {};
  config.integrity = {.interval = 0};  // its records are as small as others that are not counted
  return config;
}

Config with_micro_batches(Config config, int ranks, int64_t most) {
  config.train.global_batch = std::min(config.train.global_batch, most * config.train.micro_batch * ranks);
  return config;
}

// Its presence makes products keep what they read.
class IdleObserver final : public ProductObserver {
 public:
  void on_product(const ObservedProduct&) override {}
};

void require_matches(const AutocastPolicy& policy, const std::vector<PrecisionRule>& rules) {
  const auto unmatched = policy.unmatched_patterns();
  if (unmatched.empty()) return;
  const auto rule = std::find_if(rules.begin(), rules.end(), [&unmatched](const PrecisionRule& candidate) {
    return candidate.match == unmatched.front();
  });
  const std::string element = rule == rules.end() ? "" : fmt::format("[{}].match", rule - rules.begin());
  throw ConfigError(
      fmt::format("precision.rules{}: '{}' matches no layer of this model; layers are named like 'blocks.0.mlp.up', "
                  "'blocks.*.attention' or 'head'",
                  element, unmatched.front()));
}

void evaluate(Session& session) {
  ModelRuntime& runtime = session.runtime;
  const int64_t context = session.config.model.context;
  const Tensor tokens =
      runtime.backend->make_tensor(DType::kI32, {session.config.train.micro_batch * context}, "tokens");
  Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
  runtime.model->loss(tape, tokens, tokens, context);
}

// The device that packs weights in steps of `ranks` ranks; nullptr if the weights are not packed.
std::unique_ptr<Backend> packing_device(const Config& config, int ranks) {
  if (!config.train.keeps_packed_weights(ranks) || !computes_on_host(config.device, 0)) return nullptr;
  return create_backend(choose_device(config.device, 0).backend);
}

LayerExtents extents_of(const ParameterSet& parameters, std::string_view layer, const Tensor& output) {
  LayerExtents extents{.rows = output.dim(0), .outputs = output.dim(1), .dtype = output.dtype()};
  for (int index = 0; index < parameters.size(); ++index) {
    const Parameter& parameter = parameters[index];
    if (parameter.precision_layer() != layer) continue;
    if (parameter.shape.rank() == 2) extents.inputs = parameter.shape[1];
    if (parameter.shape.rank() == 1) extents.has_bias = true;
  }
  return extents;
}

}  // namespace

DryRun::DryRun(const Config& config, const DryRunOptions& options)
    : muted_(std::in_place),
      config_(without_surroundings(with_micro_batches(config, options.ranks, 2))),  // further ones keep no more
      communicator_(std::make_unique<DryRanks>(options.ranks, options.path)),
      session_(config_, *communicator_,
               dry_parts(std::make_unique<DryRunBackend>(options.packing, options.support), nullptr)) {}

DryRun::DryRun(const Config& config, int ranks, std::unique_ptr<Backend> backend,
               std::unique_ptr<StepProfiler> profiler)
    : config_(without_surroundings(config)),
      communicator_(std::make_unique<DryRanks>(ranks, ContributionPath::kExchanged)),
      session_(config_, *communicator_, dry_parts(std::move(backend), std::move(profiler))) {}

void DryRun::run_all_steps() {
  TrainStep step(session_);
  step.calibrate();  // delayed scaling has the first batch to itself
  step.run();
  if (config_.probe.enabled) {
    IdleObserver observer;
    StepWork work(session_);
    work.load(0);
    work.run({.observer = &observer});
  }
  require_matches(session_.runtime.policy, config_.precision.rules);
}

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

size_t training_arena_bytes(const Config& config, Fp8GemmSupport support) {
  DryRun dry(config, {.support = support});
  Session& session = dry.session();
  dry.run_all_steps();
  StepWork work(session);
  work.load(0);
  if (!config.test.activations.empty()) {  // then no op is part of another
    work.run({.after_op = [](std::string_view, std::string_view, Tensor&) {}});
  }
  work.find_culprit(Pass::kForward);
  if (config.train.eval_interval > 0 || !config.train.evaluations.empty()) evaluate(session);
  if (draws_samples(config, *session.runtime.model)) generate_dry(session.runtime, config.model, {});
  return session.runtime.arena->peak_bytes();
}

std::vector<PlacedOp> ops_of(const Config& config) {
  DryRun dry(with_micro_batches(config, 1, 1));
  const ModelRuntime& runtime = dry.session().runtime;
  std::vector<PlacedOp> ops;
  StepWork work(dry.session());
  work.load(0);
  const OpHook add_op = [&](std::string_view layer, std::string_view op_name, Tensor& output) {
    const Op op = parse_op(op_name).value();
    const Precision& precision = runtime.policy.at(layer);
    const bool is_linear = op == Op::kLinear;
    ops.push_back({.layer = std::string(layer),
                   .op = op,
                   .compute = compute_dtype(precision, {}, op, output.dtype(), output.dtype()),
                   .formats = is_linear ? linear_formats(precision, {}) : LinearFormats(),
                   .extents = is_linear ? extents_of(runtime.parameters, layer, output) : LayerExtents(),
                   .fp32_products = precision.fp32_products});
  };
  work.run({.after_op = add_op});
  require_matches(runtime.policy, config.precision.rules);
  return ops;
}

}  // namespace mantissa
