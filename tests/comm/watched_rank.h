// A rank of a toy job with digests, and faults in its memory and on its wires.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "comm/corruption_check.h"
#include "comm/local/local_communicator.h"
#include "tests/comm/training_rank.h"

namespace mantissa::testing {

// Flips a bit of an item in host memory.
inline void flip_bit(const Tensor& tensor, int64_t element, int bit) {
  tensor.raw()[element * size_bytes(tensor.dtype()) + bit / 8] ^= std::byte{1} << (bit % 8);
}

inline int bits_of(const Tensor& tensor) { return static_cast<int>(8 * size_bytes(tensor.dtype())); }

// Corrupts a collective's result on one rank, once.
class CorruptedWire final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  std::function<void(const Tensor&)> on_all_to_all{}, on_all_gather{};  // get what was received
  std::function<void()> before_barrier{};

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    auto work = ForwardingCommunicator::all_to_all(send, recv, stream);
    return corrupted(std::move(work), recv, on_all_to_all);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    auto work = ForwardingCommunicator::all_gather(send, recv, stream);
    return corrupted(std::move(work), recv, on_all_gather);
  }

  std::unique_ptr<Work> node_barrier(Stream& stream) override {
    if (before_barrier) std::exchange(before_barrier, nullptr)();
    return ForwardingCommunicator::node_barrier(stream);
  }

 private:
  static std::unique_ptr<Work> corrupted(std::unique_ptr<Work> work, const Tensor& recv,
                                         std::function<void(const Tensor&)>& corrupt) {
    if (!corrupt) return work;
    work->wait();
    std::exchange(corrupt, nullptr)(recv);
    return std::make_unique<NoWork>();
  }
};

// A rank of a toy job with digests.
struct WatchedRank {
  WatchedRank(Communicator& given, const AdamWOptions& options, Sharding sharding, DType wire = DType::kF32,
              DType low = DType::kBF16)
      : wires(given), adamw(options), backend(create_backend("cpu")), stream(backend->create_stream()) {
    add_toy_parameters(parameters, low);
    const ReducerConfig reduction{.wire = wire, .sharding = sharding, .wire_digests = Digests::kOn};
    state.emplace(parameters,
                  ShardedStateOptions{
                      .layout = BucketLayout(parameters, given.size(), kToyCapacityBytes, state_alignment(options)),
                      .sent = {.communicator = &wires, .gradients = true, .weights = sharding == Sharding::kSharded},
                      .reduction = reduction,
                      .adamw = options,
                      .digests = Digests::kOn},
                  wires, *backend, *stream);
    state->optimizer.initialize(kSeed);
    check.emplace(*state);
  }

  void reduce(const GradientFunction& gradient) {
    parameters.forget_gradients();
    state->reducer.begin();
    for (int index = parameters.size() - 1; index >= 0; --index) {
      Parameter& parameter = parameters[index];
      float* values = parameter.gradient.data<float>();
      for (int64_t i = 0; i < parameter.numel(); ++i) values[i] = gradient(wires.rank(), index, i);
      parameter.gradient_written = true;
      state->reducer.ready(parameter);
    }
    state->reducer.finish();
  }
  void update() {
    constexpr double kNoClipping = std::numeric_limits<double>::infinity();
    const UpdateControl control =
        control_of(UpdateDecision{}, plan_update(adamw, state->optimizer.applied_steps(), 1.0, kNoClipping, 1e-2));
    const Tensor record = backend->make_record<UpdateControl>("update control");
    backend->upload(&control, record, *stream);
    state->optimizer.step(state->reducer, record);
    state->optimizer.await_weights();
    state->optimizer.count_applied_step();
  }
  void step(int number) {
    reduce(gradient_of(number));
    update();
  }

  CorruptedWire wires;
  AdamWOptions adamw;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ParameterSet parameters;
  std::optional<ShardedState> state;
  std::optional<CorruptionCheck> check;
};

struct CorruptionLayout {
  int ranks;
  Sharding sharding;
};

class CorruptionTest : public ::testing::TestWithParam<CorruptionLayout> {
 protected:
  int ranks() const { return GetParam().ranks; }
  void on_ranks(const AdamWOptions& options, const std::function<void(WatchedRank&)>& body,
                DType wire = DType::kF32) const {
    run_ranks(ranks(), [&](Communicator& communicator) {
      WatchedRank rank(communicator, options, GetParam().sharding, wire);
      body(rank);
    });
  }
};

// Whether the finding names the tile that the element is in.
inline bool is_at(const Corruption& corruption, int64_t element) {
  return corruption.count <= kDigestTile && corruption.begin <= element &&
         element < corruption.begin + corruption.count;
}

inline std::string found_text(const std::vector<Corruption>& found, const ParameterSet& parameters) {
  std::string text;
  for (const Corruption& corruption : found) text += to_text(corruption, parameters) + "\n";
  return text;
}

inline std::string name_of_layout(const ::testing::TestParamInfo<CorruptionLayout>& info) {
  return fmt::format("{}{}", info.param.sharding == Sharding::kSharded ? "Sharded" : "Replicated", info.param.ranks);
}

}  // namespace mantissa::testing
