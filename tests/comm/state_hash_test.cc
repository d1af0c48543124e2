// The hash of the training state: the same for any ranks and shards of one state, another for another state.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <mutex>
#include <set>

#include "comm/local/local_communicator.h"
#include "comm/sharded_state.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

// Values of the state by tensor (0: weights, 1 and 2: the moments), parameter and element.
using StateFunction = std::function<float(int tensor, int parameter, int64_t element)>;

float usual(int tensor, int parameter, int64_t element) {
  const float value = testing::toy_gradient(tensor, parameter, element);
  return tensor == 2 ? std::abs(value) : value;
}

// A parameter of more elements than are read at a time (sharded_state.cc).
void add_large_parameter(ParameterSet& parameters) { parameters.add("large.weight", {1100, 1000}, {}); }
void add_usual_parameters(ParameterSet& parameters) { testing::add_toy_parameters(parameters); }

// The hash on `ranks` ranks after loading the values, alike on all of them.
StateHash hash_on(int ranks, const StateFunction& value, Sharding sharding = Sharding::kSharded,
                  const AdamWOptions& options = testing::kOptions,
                  void (*add_parameters)(ParameterSet&) = add_usual_parameters) {
  std::mutex mutex;
  std::vector<StateHash> found;
  run_ranks(ranks, [&](Communicator& communicator) {
    const auto backend = create_backend("cpu");
    const auto stream = backend->create_stream();
    ParameterSet parameters;
    add_parameters(parameters);
    ShardedState state(parameters,
                       ShardedStateOptions{.layout = BucketLayout(parameters, ranks, testing::kToyCapacityBytes,
                                                                  state_alignment(options)),
                                           .reduction = {.wire = DType::kF32, .sharding = sharding},
                                           .adamw = options},
                       communicator, *backend, *stream);
    state.optimizer.begin_load();
    for (int index = 0; index < parameters.size(); ++index) {
      std::vector<float> values[3];
      for (int tensor = 0; tensor < 3; ++tensor) {
        for (int64_t i = 0; i < parameters[index].numel(); ++i) values[tensor].push_back(value(tensor, index, i));
      }
      state.optimizer.load({.parameter = index,
                            .begin = 0,
                            .weights = values[0],
                            .m = {.values = values[1]},
                            .v = {.values = values[2]}});
    }
    state.optimizer.end_load(3);
    const StateHash hash = hash_state(state);
    const std::lock_guard lock(mutex);
    found.push_back(hash);
  });
  EXPECT_EQ(found.size(), static_cast<size_t>(ranks));
  for (const StateHash& hash : found) EXPECT_EQ(hash, found[0]) << "another on another rank";
  return found[0];
}

TEST(StateHash, DoesNotDependOnRanksAndShards) {
  std::set<uint64_t> all;
  for (const testing::NamedState& named : testing::named_states()) {
    const StateHash alone = hash_on(1, usual, Sharding::kSharded, named.options);
    for (const int ranks : {2, 3}) {
      for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
        const StateHash hash = hash_on(ranks, usual, sharding, named.options);
        EXPECT_EQ(hash.weights, alone.weights) << named.name << " on " << ranks;
        EXPECT_EQ(hash.state, alone.state) << named.name << " on " << ranks;
      }
    }
    EXPECT_TRUE(all.insert(alone.state).second) << named.name << " has the state of other formats";
  }
}

TEST(StateHash, LargeShardsAreReadInParts) {
  const auto hash = [](int ranks, const StateFunction& value) {
    return hash_on(ranks, value, Sharding::kSharded, testing::kOptions, add_large_parameter);
  };
  const StateHash alone = hash(1, usual);
  EXPECT_EQ(hash(3, usual), alone);
  for (const int64_t place : {(1 << 20) - 1, 1 << 20, 1100 * 1000 - 1}) {
    const StateHash changed = hash(1, [place](int tensor, int index, int64_t i) {
      return usual(tensor, index, i) + (tensor == 0 && i == place ? 1.0f : 0.0f);
    });
    EXPECT_NE(changed.weights, alone.weights) << place;
  }
}

TEST(StateHash, EveryBitOfEveryTensorCounts) {
  const StateHash before = hash_on(2, usual);
  for (int tensor = 0; tensor < 3; ++tensor) {
    for (const auto& [parameter, element] : {std::pair(0, 0), std::pair(0, 101 * 64 - 1), std::pair(5, 0)}) {
      for (const int bit : {0, 11, 30}) {
        const StateHash after = hash_on(2, [&](int of, int index, int64_t i) {
          const float value = usual(of, index, i);
          if (of != tensor || index != parameter || i != element) return value;
          return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (1u << bit));
        });
        EXPECT_EQ(after.weights == before.weights, tensor > 0) << tensor << " " << parameter << " " << bit;
        EXPECT_NE(after.state, before.state) << tensor << " " << parameter << " " << bit;
      }
    }
  }
}

// The same values at other places: sums of unmixed items would not see it.
TEST(StateHash, PlacesCount) {
  const StateHash before = hash_on(1, usual);
  const auto with = [&](const std::function<std::pair<int, int64_t>(int, int64_t)>& source) {
    return hash_on(1, [source](int tensor, int index, int64_t i) {
      const auto [parameter, element] = source(index, i);
      return usual(tensor, parameter, element);
    });
  };
  const StateHash elements =
      with([](int parameter, int64_t i) { return std::pair(parameter, parameter == 0 && i < 2 ? 1 - i : i); });
  EXPECT_NE(elements.weights, before.weights);
  EXPECT_NE(elements.state, before.state);
  // norm1.bias (63) and norm1.weight (64) exchange their first 63 values.
  const StateHash parameters = with([](int parameter, int64_t i) {
    return std::pair(parameter == 1 && i < 63 ? 2 : parameter == 2 ? 1 : parameter, i);
  });
  EXPECT_NE(parameters.weights, before.weights);
  // Weights and first moments change places.
  const StateHash tensors =
      hash_on(1, [](int tensor, int index, int64_t i) { return usual(tensor == 2 ? 2 : 1 - tensor, index, i); });
  EXPECT_NE(tensors.weights, before.weights);
  EXPECT_NE(tensors.state, before.state);
}

// Zeros at every place, of both signs, and equal values do not cancel.
TEST(StateHash, EqualValuesDoNotCancel) {
  std::set<uint64_t> all;
  for (const float value : {0.0f, -0.0f, 1.0f, -1.0f}) {
    const StateHash hash = hash_on(3, [value](int, int, int64_t) { return value; });
    EXPECT_TRUE(all.insert(hash.weights).second && all.insert(hash.state).second) << value;
  }
}

}  // namespace
}  // namespace mantissa
