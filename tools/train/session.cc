#include "tools/train/session.h"

#include <bit>

#include "comm/bucket_layout.h"

namespace mantissa {
namespace {

// What ranks must agree on before anything else.
struct Identity {
  uint64_t config;
  uint64_t data;
};

// Refuses a job whose ranks were started with different inputs: they would train different models without a word.
void require_agreement(Communicator& communicator, const Identity& mine) {
  const auto all = all_gather_records(communicator, mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].config != all[0].config) {
      throw CommError(
          fmt::format("rank {} was started with another configuration than rank 0: start all ranks with the "
                      "same file and the same overrides (`mantissa config FILE` prints what a rank reads)",
                      rank));
    }
    if (all[rank].data != all[0].data) {
      throw CommError(
          fmt::format("rank {} reads other data than rank 0: data.train and data.validation must name the same "
                      "files on all nodes",
                      rank));
    }
  }
}

const Config& checked(const Config& config, Communicator& communicator, uint64_t data) {
  require_agreement(communicator, {fingerprint(config), data});
  return config;
}

}  // namespace

int gradient_boost_log2(int64_t ranks, int64_t micro_batches) {
  return std::bit_width(static_cast<uint64_t>(ranks * micro_batches)) - 1;
}

ReducerConfig resolve_reducer(const Config& config, int ranks) {
  ReducerConfig reducer = config.comm.reducer;
  reducer.boost_log2 = gradient_boost_log2(ranks, config.train.global_batch / (config.train.micro_batch * ranks));
  return reducer;
}

Session::Session(const Config& given, Communicator& given_communicator)
    : config(checked(given, given_communicator, 0)),
      communicator(given_communicator),
      runtime(config),
      data(config, runtime.model->objective()),
      injection(config.test, communicator.rank(), *runtime.backend, *runtime.stream),
      buckets(runtime.parameters, BucketLayout(runtime.parameters, ranks(), config.comm.bucket_bytes()),
              *runtime.backend),
      reducer(buckets, communicator, *runtime.backend, *runtime.stream, resolve_reducer(config, ranks())),
      optimizer(buckets, communicator, *runtime.backend, *runtime.stream, config.comm.reducer.sharding,
                config.optimizer.adamw),
      verdicts(communicator, *runtime.backend, *runtime.stream),
      scaler(config.scaler.scaler),
      clipper(config.optimizer.clip) {
  require_agreement(communicator, {fingerprint(config), data.fingerprint()});
  for (const GradientInjection& fault : config.test.gradients) {
    const Parameter* parameter = runtime.parameters.find(fault.parameter);
    if (parameter == nullptr) {
      throw ConfigError(fmt::format("test.gradients: the model has no parameter '{}'", fault.parameter));
    }
    if (fault.element < 0 || fault.element >= parameter->numel()) {
      throw ConfigError(fmt::format("test.gradients: '{}' has {} elements, there is no element {}", fault.parameter,
                                    parameter->numel(), fault.element));
    }
  }
  optimizer.initialize(config.train.seed);
}

}  // namespace mantissa
