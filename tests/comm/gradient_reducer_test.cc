// Sums of gradients.
#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "comm/gradient_reducer.h"
#include "comm/local/local_communicator.h"
#include "core/tensor/philox.h"
#include "tests/comm/node_ranks.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

using testing::expected_sum;
using testing::ReducerTest;
using testing::round_to;
using testing::toy_gradient;
using testing::TrainingRank;

// The number of elements of the result, on this rank, that differ from expected(parameter, element).
int64_t count_wrong(const TrainingRank& rank, const auto& expected) {
  int64_t wrong = 0;
  rank.for_each_result([&](int p, int64_t i, float value) { wrong += value != expected(p, i); });
  return wrong;
}

TEST_P(ReducerTest, EveryElementIsTheDefinedSumOnEveryRankThatHoldsIt) {
  std::mutex mutex;
  std::map<std::pair<int, int64_t>, int> holders;
  run([&](Communicator& communicator) {
    TrainingRank rank(communicator, config());
    EXPECT_EQ(rank.reducer->path(), path());
    for (int round = 0; round < 2; ++round) rank.reduce();  // the second time with used buffers
    int64_t wrong = 0, elements = 0;
    std::map<std::pair<int, int64_t>, int> mine;
    rank.for_each_result([&](int parameter, int64_t element, float value) {
      ++elements;
      ++mine[{parameter, element}];
      const float expected = expected_sum(config(), ranks(), parameter, element);
      wrong += std::bit_cast<uint32_t>(value) != std::bit_cast<uint32_t>(expected);
    });
    EXPECT_EQ(wrong, 0) << "of " << elements << " on rank " << communicator.rank();
    const std::lock_guard lock(mutex);
    for (const auto& [key, count] : mine) holders[key] += count;
  });
  ParameterSet parameters;
  testing::add_toy_parameters(parameters);
  EXPECT_EQ(static_cast<int64_t>(holders.size()), parameters.numel());
  const int copies = config().sharding == Sharding::kSharded ? 1 : ranks();
  for (const auto& [key, count] : holders) ASSERT_EQ(count, copies);
}

TEST_P(ReducerTest, TheSumIsWithinItsErrorBoundOfTheExactOne) {
  run([&](Communicator& communicator) {
    TrainingRank rank(communicator, config());
    rank.reduce();
    const bool wire = ranks() > 1 && config().wire != DType::kF32;
    // Unit roundoffs, 0 where nothing is rounded. A 16-bit value below the normal range has an absolute error instead.
    const double unit_wire = wire ? info(format_of(config().wire)).epsilon / 2 : 0.0;
    const double unit_sum = config().accumulation == Accumulation::kWire && wire ? unit_wire : 0x1p-24;
    const double tiny =
        wire ? info(format_of(config().wire)).min_subnormal / 2 / wire_scale(config(), ranks()).before : 0.0;
    int64_t outside = 0;
    rank.for_each_result([&](int parameter, int64_t element, float value) {
      double exact = 0.0, magnitude = 0.0;
      for (int r = 0; r < ranks(); ++r) {
        exact += static_cast<double>(toy_gradient(r, parameter, element));
        magnitude += std::abs(static_cast<double>(toy_gradient(r, parameter, element)));
      }
      // One rounding of each contribution, then ranks - 1 additions. Partial sums are at most the magnitude and may be
      // subnormal on the wire. Second-order terms are below one per cent.
      const double first_order = unit_wire + (ranks() - 1) * unit_sum;
      const double bound = 1.01 * magnitude * first_order + 2.0 * ranks() * tiny;
      outside += !(std::abs(static_cast<double>(value) - exact) <= bound);
    });
    EXPECT_EQ(outside, 0);
  });
}

TEST_P(ReducerTest, LocalGradientsAndPaddingStayAsTheyAre) {
  run([&](Communicator& communicator) {
    TrainingRank rank(communicator, config());
    rank.reduce();
    const BucketLayout& layout = rank.buckets->layout();
    int64_t wrong = 0;
    for (int64_t flat = 0; flat < layout.numel(); ++flat) {
      size_t bucket = 0;
      while (flat >= layout.buckets()[bucket].flat_begin + layout.buckets()[bucket].numel) ++bucket;
      const float value =
          rank.buckets->gradient(static_cast<int>(bucket)).data<float>()[flat - layout.buckets()[bucket].flat_begin];
      const auto element = layout.locate(flat);
      const float expected = element ? toy_gradient(communicator.rank(), element->parameter, element->element) : 0.0f;
      wrong += value != expected;
    }
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(ReducerTest, RegistersWhatItExchangesForItsLife) {
  const bool gathers = config().sharding == Sharding::kReplicated;
  const bool exchanges = ranks() > 1 && (path() == ContributionPath::kExchanged || gathers);
  run([&](Communicator& inner) {
    testing::RecordedRegistrations communicator(inner);
    {
      TrainingRank rank(communicator, config());
      EXPECT_EQ(communicator.registered() > 0, exchanges);
      rank.reduce();
      EXPECT_EQ(communicator.inside() > 0, exchanges);
      EXPECT_EQ(communicator.outside(), 0);
    }
    EXPECT_EQ(communicator.registered(), 0u);
  });
}

TEST_P(ReducerTest, AsSentIsTheWireValue) {
  run([&](Communicator& communicator) {
    TrainingRank rank(communicator, config());
    rank.reduce();
    const Tensor sent = rank.reducer->as_sent(rank.parameters[3]).at(0);
    ASSERT_EQ(sent.dtype(), ranks() > 1 ? config().wire : DType::kF32);
    const float before = wire_scale(config(), ranks()).before;
    dispatch(sent.dtype(), [&]<typename T>() {
      for (int64_t i = 0; i < sent.numel(); ++i) {
        ASSERT_EQ(to_float(sent.data<T>()[i]),
                  round_to(sent.dtype(), before * toy_gradient(communicator.rank(), 3, i)));
      }
    });
  });
}

TEST_P(ReducerTest, BuffersAreWhatThePlanSays) {
  run([&](Communicator& communicator) {
    const TrainingRank rank(communicator, config());
    EXPECT_EQ(rank.reducer->buffer_bytes(), rank.reducer->plan().window_bytes + rank.reducer->plan().result_bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Wires, ReducerTest, testing::reducer_cases());

// Rank 1 reads a bucket late. Without the barrier at the end of finish(), rank 0 would already be in the next step.
class LateRank final : public testing::NodeCommunicator {
 public:
  using NodeCommunicator::NodeCommunicator;
  std::unique_ptr<Work> node_barrier(Stream& stream) override {
    return std::make_unique<LateWork>(NodeCommunicator::node_barrier(stream), rank() == 1);
  }

 private:
  class LateWork final : public Work {
   public:
    LateWork(std::unique_ptr<Work> work, bool late) : work_(std::move(work)), late_(late) {}
    bool test() override { return !late_ && work_->test(); }
    void wait() override {
      work_->wait();
      if (late_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }

   private:
    const std::unique_ptr<Work> work_;
    const bool late_;
  };
};

TEST(Reducer, GradientsReadInPlaceAreOverwrittenOnlyWhenAllHaveReadThem) {
  run_ranks(2, [](Communicator& local) {
    LateRank communicator(local);
    TrainingRank rank(communicator, {});
    for (int step = 0; step < 3; ++step) {
      const auto gradient = [step](int r, int parameter, int64_t element) {
        return toy_gradient(r + 2 * step, parameter, element);
      };
      rank.reduce(gradient);
      const auto expected = [&](int p, int64_t i) { return expected_sum({}, 2, p, i, gradient); };
      EXPECT_EQ(count_wrong(rank, expected), 0) << "in step " << step;
    }
  });
}

// big + 1 + 1, where 1 is half a unit in big's last place in the wire dtype. Adding on the wire loses each 1 (ties to
// even), fp32 loses none. All values and both sums are exact in the wire dtype.
TEST(Reducer, AddingOnTheWireLosesWhatFp32Keeps) {
  for (const auto& [wire, big] : {std::pair{DType::kBF16, 0x1p8f}, std::pair{DType::kF16, 0x1p11f}}) {
    const auto gradient = [big = big](int rank, int, int64_t) { return rank == 0 ? big : 1.0f; };
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      for (const Accumulation accumulation : {Accumulation::kFp32, Accumulation::kWire}) {
        const float expected = accumulation == Accumulation::kFp32 ? big + 2.0f : big;
        run_ranks(3, [&, wire = wire](Communicator& communicator) {
          TrainingRank rank(communicator, {.wire = wire, .accumulation = accumulation, .sharding = sharding});
          rank.reduce(gradient);
          EXPECT_EQ(count_wrong(rank, [&](int, int64_t) { return expected; }), 0)
              << "of " << name(wire) << " added in " << (expected == big ? "the wire dtype" : "fp32");
        });
      }
    }
  }
}

TEST(Reducer, OneRankCopiesAndRoundsNothing) {
  run_ranks(1, [](Communicator& communicator) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      TrainingRank rank(communicator, {.wire = DType::kBF16, .sharding = sharding});
      rank.reduce();
      for (int bucket = 0; bucket < rank.buckets->size(); ++bucket) {
        EXPECT_EQ(rank.reducer->result(bucket).raw(), rank.buckets->gradient(bucket).raw());
      }
      EXPECT_EQ(rank.reducer->buffer_bytes(), 0u);
    }
  });
}

TEST(Reducer, APrescaleChangesNoBitOfTheSumWhileNothingOverflows) {
  // Powers of two commute with rounding: gradients 32 times as large have a sum 32 times as large.
  run_ranks(3, [](Communicator& communicator) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      TrainingRank plain(communicator, {.wire = DType::kF16, .sharding = sharding});
      TrainingRank prescaled(communicator, {.wire = DType::kF16, .sharding = sharding, .prescale_log2 = 5});
      plain.reduce();
      prescaled.reduce(
          [](int r, int parameter, int64_t element) { return 32.0f * toy_gradient(r, parameter, element); });
      for (int bucket = 0; bucket < plain.buckets->size(); ++bucket) {
        const Tensor &a = plain.reducer->result(bucket), &b = prescaled.reducer->result(bucket);
        int64_t wrong = 0;
        for (int64_t i = 0; i < a.numel(); ++i) wrong += 32.0f * a.data<float>()[i] != b.data<float>()[i];
        EXPECT_EQ(wrong, 0);
      }
    }
  });
}

// Relative error of the sums of two ranks in the Euclidean norm. Contributions of independent signs are rounded once.
TEST(Reducer, AReplicatedSumIsRoundedNoMoreThanAShardedOne) {
  for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
    run_ranks(2, [&](Communicator& communicator) {
      TrainingRank rank(communicator, {.wire = DType::kBF16, .sharding = sharding});
      rank.reduce();
      double error = 0.0, square = 0.0;
      rank.for_each_result([&](int parameter, int64_t element, float value) {
        double exact = 0.0;
        for (int r = 0; r < 2; ++r) exact += static_cast<double>(toy_gradient(r, parameter, element));
        error += std::pow(static_cast<double>(value) - exact, 2);
        square += exact * exact;
      });
      // bf16's ceiling of the signal-to-noise ratio is 55.6 dB: 1.66e-3. A second rounding makes it 2.3e-3.
      EXPECT_LT(std::sqrt(error / square), 1.8e-3);
    });
  }
}

TEST(Reducer, ASumOfPrescaledGradientsMayBeBeyondTheRangeOfTheWire) {
  // 2 ranks prescaled by 2^10: the sum of 2^20 is far above 65504.
  run_ranks(2, [](Communicator& communicator) {
    TrainingRank rank(communicator, {.wire = DType::kF16, .sharding = Sharding::kReplicated, .prescale_log2 = 10});
    rank.reduce([](int, int, int64_t) { return 0x1p19f; });
    rank.for_each_result([](int, int64_t, float value) { ASSERT_EQ(value, 0x1p20f); });
  });
}

TEST(Reducer, ABucketStartsWhenItsLastGradientLands) {
  run_ranks(2, [](Communicator& communicator) {
    TrainingRank rank(communicator, {});
    GradientReducer& reducer = *rank.reducer;
    const auto& buckets = rank.buckets->layout().buckets();
    ASSERT_GE(buckets.size(), 3u);
    reducer.begin();
    for (int parameter = 0; parameter < rank.parameters.size(); ++parameter)
      rank.write_gradient(parameter, toy_gradient);
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      for (const Segment& segment : buckets[bucket].segments) {
        EXPECT_EQ(reducer.started(), static_cast<int>(bucket)) << "before its last parameter";
        reducer.ready(rank.parameters[segment.parameter]);
      }
      EXPECT_EQ(reducer.started(), static_cast<int>(bucket) + 1);
    }
    communicator.barrier();  // the other rank has started all buckets as well
    while (reducer.completed() < reducer.started()) reducer.progress();  // completes without finish()
    reducer.finish();
  });
}

TEST(Reducer, GradientsMayLandInAnyOrderAndInAnotherOneOnEachRank) {
  const ReducerConfig config{.wire = DType::kBF16};
  for (uint32_t shuffle = 0; shuffle < 6; ++shuffle) {
    run_ranks(3, [&](Communicator& communicator) {
      TrainingRank rank(communicator, config);
      std::vector<int> order(static_cast<size_t>(rank.parameters.size()));
      std::iota(order.begin(), order.end(), 0);
      const auto key = [&](int parameter) {
        return philox(shuffle, {static_cast<uint32_t>(parameter), static_cast<uint32_t>(communicator.rank()), 0, 0})[0];
      };
      std::sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
      rank.reducer->begin();
      for (const int parameter : order) {
        rank.write_gradient(parameter, toy_gradient);
        rank.reducer->ready(rank.parameters[parameter]);
        rank.reducer->progress();
      }
      EXPECT_EQ(rank.reducer->started(), rank.buckets->size());
      rank.reducer->finish();
      EXPECT_EQ(count_wrong(rank, [&](int p, int64_t i) { return expected_sum(config, 3, p, i); }), 0);
      const Tensor& stats = rank.reducer->stats();
      const std::vector<std::byte> bytes(stats.raw(), stats.raw() + stats.size_bytes());
      rank.reduce();
      EXPECT_EQ(std::memcmp(stats.raw(), bytes.data(), bytes.size()), 0) << "the order left a trace in the statistics";
    });
  }
}

TEST(Reducer, ParametersWithoutAGradientCountAsZeroEvenIfUsedBefore) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](Communicator& communicator) {
      TrainingRank rank(communicator, {.wire = DType::kF32});
      rank.reduce();  // leaves gradients of an earlier step
      rank.parameters.forget_gradients();
      rank.reducer->begin();
      rank.write_gradient(5, toy_gradient);
      rank.reducer->ready(rank.parameters[5]);
      rank.write_gradient(6, toy_gradient);     // from an earlier micro-batch: counts although not reported
      rank.reducer->ready(rank.parameters[2]);  // used, but its gradient is missing
      EXPECT_EQ(rank.reducer->started(), 0);
      rank.reducer->finish();
      const auto expected = [&](int p, int64_t i) {
        return p == 5 || p == 6 ? expected_sum(rank.reducer->config(), ranks, p, i) : 0.0f;
      };
      EXPECT_EQ(count_wrong(rank, expected), 0);
    });
  }
}

TEST(Reducer, RanksMayUseDifferentParameters) {
  run_ranks(2, [&](Communicator& communicator) {
    TrainingRank rank(communicator, {.wire = DType::kF32});
    rank.reducer->begin();
    rank.write_gradient(communicator.rank(), toy_gradient);
    rank.reducer->ready(rank.parameters[communicator.rank()]);
    rank.reducer->finish();
    rank.for_each_result([&](int parameter, int64_t element, float value) {
      ASSERT_EQ(value, parameter < 2 ? toy_gradient(parameter, parameter, element) : 0.0f);
    });
  });
}

TEST(Reducer, MisuseIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    TrainingRank rank(communicator, {});
    GradientReducer& reducer = *rank.reducer;
    EXPECT_THROW(reducer.ready(rank.parameters[0]), ContractError);
    EXPECT_THROW(reducer.finish(), ContractError);
    EXPECT_THROW(reducer.result(0), ContractError);
    reducer.begin();
    EXPECT_THROW(reducer.begin(), ContractError);
    EXPECT_THROW(reducer.result(0), ContractError);
    EXPECT_THROW(reducer.stats(), ContractError);
    EXPECT_THROW(reducer.as_sent(rank.parameters[0]), ContractError);
    reducer.ready(rank.parameters[8]);
    EXPECT_THROW(reducer.ready(rank.parameters[8]), ContractError);
    ParameterSet others;
    testing::add_toy_parameters(others);
    EXPECT_THROW(reducer.ready(others[0]), ContractError);
    reducer.finish();
    EXPECT_NO_THROW(reducer.result(0));
    const BucketLayout for_two(rank.parameters, 2);
    FlatBuckets buckets(rank.parameters, for_two, *rank.backend);
    EXPECT_THROW(GradientReducer(buckets, communicator, *rank.backend, *rank.stream, {}), ContractError);
  });
}

}  // namespace
}  // namespace mantissa
