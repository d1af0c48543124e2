#include "tools/train/step/dry_run.h"

#include "core/backend/decorators.h"
#include "models/model.h"
#include "tools/model/generate/generator.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

// Rank 0 of ranks that do not exist. Collectives move nothing.
class DryRanks final : public Communicator, private NodeMemory {
 public:
  DryRanks(int ranks, ContributionPath path, int node_ranks = 0)
      : Communicator({.size = ranks, .local_size = node_ranks == 0 ? ranks : node_ranks}), path_(path) {}

  std::string name() const override { return "dry run"; }

  std::unique_ptr<Work> all_to_all(const Tensor&, const Tensor&, Stream&) override {
    return std::make_unique<NoWork>();
  }
  std::unique_ptr<Work> all_gather(const Tensor&, const Tensor&, Stream&) override {
    return std::make_unique<NoWork>();
  }
  std::unique_ptr<Work> node_barrier(Stream&) override { return std::make_unique<NoWork>(); }
  NodeMemory* node_memory() override { return path_ == ContributionPath::kInPlace ? this : nullptr; }
  std::shared_ptr<Storage> allocate(size_t bytes, const char*) override { return backend_.reserve(bytes); }
  SharedRows rows_of_all(const Tensor& mine) const override {
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
  // The groups of the first stage come first.
  std::unique_ptr<Communicator> split(int, int members) override {
    const bool is_first = !std::exchange(is_split_, true);
    return std::make_unique<DryRanks>(members, is_first ? path_ : ContributionPath::kExchanged);
  }
  void abort(int) override { throw Error(ExitCode::kInternal, "a dry run has no ranks to end"); }

 private:
  const ContributionPath path_;
  bool is_split_ = false;
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
  const int lanes = config.train.lanes_of(ranks);
  config.train.global_batch = std::min(config.train.global_batch, most * config.train.micro_batch * lanes);
  return config;
}

void require_matches(const AutocastPolicy& policy, const std::vector<PrecisionRule>& rules) {
  const auto unmatched = policy.unmatched_patterns();
  if (unmatched.empty()) return;
  const auto rule = std::find_if(rules.begin(), rules.end(), [&unmatched](const PrecisionRule& candidate) {
    return candidate.match == unmatched.front();
  });
  const std::string element = rule == rules.end() ? "" : fmt::format("[{}].match", rule - rules.begin());
  throw ConfigError(
      "precision.rules{}: '{}' matches no layer of this model; layers are named like 'blocks.0.mlp.up', "
      "'blocks.*.attention' or 'head'",
      element, unmatched.front());
}

void evaluate(Session& session) {
  ModelRuntime& runtime = session.runtime;
  const int64_t context = session.config.model.context;
  const Tensor tokens =
      runtime.backend->make_tensor(DType::kI32, {session.config.train.micro_batch * context}, "tokens");
  Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
  runtime.model->loss(tape, tokens, tokens, context);
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
      communicator_(std::make_unique<DryRanks>(options.ranks, options.path, options.node_ranks)),
      session_(config_, *communicator_,
               dry_parts(std::make_unique<DryRunBackend>(options.packing, options.support), nullptr)) {}

DryRun::DryRun(const Config& config, int ranks, std::unique_ptr<Backend> backend,
               std::unique_ptr<StepProfiler> profiler)
    : config_(without_surroundings(config)),
      communicator_(std::make_unique<DryRanks>(ranks, ContributionPath::kExchanged)),
      session_(config_, *communicator_, dry_parts(std::move(backend), std::move(profiler))) {}

size_t DryRun::run_all_steps() {
  TrainStep step(session_);
  step.calibrate();  // delayed scaling has the first batch to itself
  step.run();
  require_matches(session_.runtime.policy, config_.precision.rules);
  if (!config_.probe.enabled) return 0;
  RunProbe probe = make_probe(config_, session_.sharded);
  StepWork work(session_);
  work.load(0);
  work.run({.observer = probe.products()});  // it makes products keep what they read
  probe.before_update();
  probe.after_update();
  return probe.size_bytes();
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
  Config single = config;
  single.train.lanes = 1;
  DryRun dry(with_micro_batches(single, 1, 1));
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
