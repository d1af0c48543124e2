#include "tools/train/step/session.h"

#include <algorithm>
#include <optional>

#include "comm/communicator.h"
#include "comm/staged/staged_communicator.h"
#include "core/backend/registry.h"

namespace mantissa {
namespace {

// The first rank whose value differs from rank 0's: it would train another model. Nothing if all agree.
template <typename Value>
std::optional<size_t> first_difference(const std::vector<Value>& by_rank) {
  const auto found = std::find_if(by_rank.begin(), by_rank.end(), [&](const Value& one) { return one != by_rank[0]; });
  if (found == by_rank.end()) return std::nullopt;
  return static_cast<size_t>(found - by_rank.begin());
}

ReducerConfig reducer_config(const Config& config, int ranks) {
  const int lanes = config.train.lanes_of(ranks);
  ReducerConfig reducer = config.comm.reducer;
  reducer.wire = config.wire();
  reducer.seed = config.train.seed;
  if (config.integrity.wire) reducer.wire_digests = Digests::kOn;
  reducer.prescale_log2 = gradient_prescale_log2(lanes, config.train.global_batch / (config.train.micro_batch * lanes));
  return reducer;
}

// The buckets in shared memory: buckets that ranks of a node read in place, and gradients sent as they are.
SentBuckets sent_buckets(const Config& config, const ExchangeGroups& groups) {
  const int ranks = groups.all().size();
  const ReducerConfig reducer = reducer_config(config, ranks);
  Communicator& first = *groups.stages()[0].group;
  const bool in_place = first.size() > 1 && first.local_size() == first.size() && first.node_memory() != nullptr &&
                        computes_on_host(config.device, groups.all().local_rank());
  return {.communicator = &first,
          .gradients =
              ((in_place && !reducer.rounds_at_sender()) || !reducer.rounds()) && config.train.lanes_of(ranks) == ranks,
          .weights = in_place && groups.stages().size() == 1 && reducer.sharding == Sharding::kSharded};
}

// ConfigError on all ranks if the exchange needs other nodes.
ExchangeGroups make_groups(const Config& config, Communicator& communicator) {
  if (communicator.size() == 1) return communicator;
  return {communicator, exchange_stages(config.comm.exchange, communicator.size(), find_node_ranks(communicator))};
}

const Config& checked(const Config& config, Communicator& communicator) {
  require_same_configuration(config, communicator);
  return config;
}

DeviceChoice agreed_device(const Config& config, Communicator& communicator, const SessionParts& parts) {
  if (parts.backend) return {};
  DeviceChoice choice = choose_device(config.device, communicator.local_rank());
  const std::vector<std::string> devices = all_gather_texts(communicator, choice.backend);
  if (const auto rank = first_difference(devices)) {
    throw CommError(
        fmt::format("rank {} would compute on device {}, rank 0 on {}: give device={} or device={} (its reason not to "
                    "use another is in the log of that rank's node)",
                    *rank, devices[*rank], devices[0], devices[0], devices[*rank]));
  }
  return choice;
}

void require_same_data(uint64_t fingerprint, Communicator& communicator) {
  if (const auto rank = first_difference(all_gather_records(communicator, fingerprint))) {
    throw CommError(
        fmt::format("rank {} reads other data than rank 0: data.train and data.validation must name the same "
                    "files on all nodes",
                    *rank));
  }
}

std::unique_ptr<StepProfiler> make_profiler(const Config& config, const DeviceChoice& device, SessionParts& parts) {
  if (parts.profiler || !config.profile) return std::move(parts.profiler);
  return std::make_unique<StepProfiler>(ProfilerOptions{.create_timer = find_backend(device.backend).create_timer});
}

std::unique_ptr<Communicator> make_staged(Communicator& transport, Backend& backend) {
  const bool on_host = backend.device().kind == Device::Kind::kCpu;
  require<ConfigError>(!on_host || !transport.carries_device_memory(),
                       "comm.backend: {} carries the memory of GPUs, but device: cpu was chosen: give comm.backend mpi",
                       transport.name());
  if (on_host || transport.carries_device_memory()) return nullptr;
  return create_staged_communicator(transport, backend);
}

std::unique_ptr<Communicator> make_profiled(Communicator& inner, StepProfiler* profiler) {
  return profiler != nullptr ? create_profiling_communicator(inner, *profiler) : nullptr;
}

Communicator& outermost(Communicator& given, Communicator* staged, Communicator* profiled) {
  if (profiled != nullptr) return *profiled;
  return staged != nullptr ? *staged : given;
}

DelayedScales& keep_delayed_scales(ModelRuntime& runtime, const Config& config) {
  runtime.keep_delayed_scales(config.precision.delayed);
  return *runtime.delayed_scales;
}

void require_capturable(const Config& config, const Communicator& communicator) {
  require<ConfigError>(
      communicator.size() == 1 || communicator.can_be_captured(),
      "cuda.graph: true captures the steps of several ranks over NCCL only, and these {} exchange by {}, "
      "where the host takes part in every step; give cuda.graph=false",
      communicator.size(), communicator.name());
  require<ConfigError>(
      config.test.faults.empty() && config.test.random.count == 0 && config.test.activations.empty(),
      "cuda.graph: true repeats one captured step, so that test: settings, which are about single steps, "
      "would have no effect: give cuda.graph=false");
}

}  // namespace

void require_same_configuration(const Config& config, Communicator& communicator) {
  if (communicator.size() == 1) return;  // saves the fingerprint: plans are priced with thousands of sessions
  if (const auto rank = first_difference(all_gather_records(communicator, fingerprint(config)))) {
    throw CommError(
        fmt::format("rank {} was started with another configuration than rank 0: start all ranks with the "
                    "same file and the same overrides (`mantissa config FILE` prints what a rank reads)",
                    *rank));
  }
}

std::shared_ptr<const Batches> open_common_batches(const Config& config, Communicator& communicator) {
  ParameterSet parameters;  // names and shapes, which take no memory
  std::shared_ptr<const Batches> batches = open_batches(config, create_model(config.model, parameters)->objective());
  require_same_data(batches->fingerprint(), communicator);
  return batches;
}

ContributionPath expected_path(const Config& config, Communicator& communicator) {
  const int ranks = communicator.size(), on_node = communicator.local_size();
  const std::vector<int> stages = exchange_stages(config.comm.exchange, ranks, ranks % on_node == 0 ? on_node : 0);
  const bool in_place = ranks > 1 && on_node % stages[0] == 0 && communicator.node_memory() != nullptr &&
                        computes_on_host(config.device, communicator.local_rank());
  return in_place ? ContributionPath::kInPlace : ContributionPath::kExchanged;
}

CodedWeights gathered_codes(const Config& config, const ParameterSet& parameters, const PrecisionPolicy& policy) {
  return config.comm.gather == WeightGather::kF8 ? coded_weights(parameters, policy) : CodedWeights();
}

BucketLayout lay_out(const Config& config, const ParameterSet& parameters, int ranks, const std::vector<int>& stages) {
  const bool on_host = computes_on_host(config.device, 0);
  return BucketLayout(parameters, {ranks, config.train.lanes_of(ranks), stages}, config.comm.bucket_bytes(on_host),
                      state_alignment(config.optimizer.adamw));
}

Session::Session(const Config& given, Communicator& given_communicator, SessionParts parts)
    : config(checked(given, given_communicator)),
      device(agreed_device(config, given_communicator, parts)),
      profiler(make_profiler(config, device, parts)),
      runtime(
          config, parts.backend ? std::move(parts.backend) : open_device(config, device),
          [&](Fp8GemmSupport support) { return training_arena_bytes(config, support); }, profiler.get()),
      faults(config, std::move(parts.struck)),
      staged_(make_staged(given_communicator, *runtime.backend)),
      profiled_(make_profiled(outermost(given_communicator, staged_.get(), nullptr), profiler.get())),
      communicator(faults.wrap(outermost(given_communicator, staged_.get(), profiled_.get()))),
      groups(make_groups(config, communicator)),
      batches(parts.batches(config, runtime.model->objective())),
      amaxes(keep_delayed_scales(runtime, config), communicator, *runtime.backend, *runtime.stream),
      sharded(runtime.parameters,
              {.layout = lay_out(config, runtime.parameters, ranks(), groups.sizes()),
               .sent = sent_buckets(config, groups),
               .reduction = reducer_config(config, ranks()),
               .adamw = config.optimizer.adamw,
               .coded = {.weights = gathered_codes(config, runtime.parameters, runtime.policy),
                         .scales = runtime.delayed_scales.get()},
               .digests = config.integrity.interval > 0 ? Digests::kOn : Digests::kOff},
              groups, *runtime.backend, *runtime.stream),
      scaler(config.scaler.scaler),
      clipper(config.optimizer.clip),
      spikes(config.stop_rules) {
  require_same_data(batches->fingerprint(), communicator);
  if (captures_steps()) require_capturable(config, communicator);
  if (runtime.backend->computes()) sharded.optimizer.initialize(config.train.seed);
  if (profiler) {
    const bool on_host = runtime.backend->device().kind == Device::Kind::kCpu;
    profiler->attach(*runtime.stream, on_host ? StreamOrder::kInline : StreamOrder::kBeside);
  }
  faults.attach(sharded);  // after the profiler: its sink of ranges outlives the sink of faults
}

}  // namespace mantissa
