// Amaxes, and the scales that delayed scaling derives from them.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/core/quant/random_amax.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace scales_test {

using reference::random_values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint32_t bits_of(float magnitude) { return std::bit_cast<uint32_t>(magnitude); }

QuantizeRecord amax_of(const Tensor& x) {
  const Tensor record = make_record(QuantizeRecord{.non_finite = 77, .amax = 99});
  run(AmaxArgs{.x = x, .record = record, .mode = GradientMode::kWrite});
  return fetch_record<QuantizeRecord>(record);
}

TEST(Amax, IsTheLargestMagnitudeWhereverItLies) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const int64_t n : {0, 1, 3, 17, 63, 65, 4099, 16389}) {
          const Tensor x = make_tensor(dtype, {n}, random_values(n, 1));
          EXPECT_EQ(amax_of(x), record_of(stored(x)));
          for (const int64_t where : {int64_t{0}, n / 2, n - 1}) {
            if (n == 0) continue;
            const Tensor planted = make_tensor(dtype, {n}, random_values(n, 2));
            set_element(planted, where, -2.5);
            EXPECT_EQ(amax_of(planted), (QuantizeRecord{.amax = bits_of(2.5f)})) << n << ", " << where;
          }
        }
      }
    }
  });
}

// More elements than a GPU has threads.
TEST(Amax, AVeryLargeTensor) {
  const int64_t n = device_under_test().large((int64_t{1} << 26) + 16387);
  const auto storage = device_under_test().guarded_storage(static_cast<size_t>(n) * sizeof(BFloat16));
  const Tensor x(storage, DType::kBF16, Shape{n});
  write_bytes(x, std::vector<BFloat16>(static_cast<size_t>(n), from_float<BFloat16>(0.5f)).data());
  EXPECT_EQ(amax_of(x), (QuantizeRecord{.amax = bits_of(0.5f)}));
  set_element(x, n - 1, 3.0);
  EXPECT_EQ(amax_of(x), (QuantizeRecord{.amax = bits_of(3.0f)}));
}

TEST(Amax, CountsWhatIsNotFiniteAndPutsNanAboveAll) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        const Tensor x = make_tensor(dtype, {20003}, random_values(20003, 3));
        set_element(x, 0, -kInfinity);
        set_element(x, 19999, kInfinity);
        EXPECT_EQ(amax_of(x), (QuantizeRecord{.non_finite = 2, .amax = kInfinityBits}));
        set_element(x, 20002, NAN);
        set_element(x, 5000, NAN);
        const QuantizeRecord found = amax_of(x);
        EXPECT_EQ(found.non_finite, 4);
        EXPECT_GT(found.amax, kInfinityBits);
        EXPECT_EQ(amax_of(make_tensor(dtype, {3}, {-0.0, 0.0, 0.0})), QuantizeRecord{});
      }
      const Tensor subnormal = make_tensor(DType::kF32, {5}, {0, -0x1p-149, 0, 0x1p-149, 0});
      EXPECT_EQ(amax_of(subnormal), (QuantizeRecord{.amax = 1}));
    }
  });
}

TEST(Amax, RaisesTheRecordAndAddsToIt) {
  const Tensor record = make_record(QuantizeRecord{.non_finite = 5, .amax = bits_of(3.0f)});
  run(AmaxArgs{.x = make_tensor(DType::kF32, {2}, {1.0, -2.0}), .record = record});
  EXPECT_EQ(fetch_record<QuantizeRecord>(record), (QuantizeRecord{.non_finite = 5, .amax = bits_of(3.0f)}));
  run(AmaxArgs{.x = make_tensor(DType::kBF16, {3}, {1.0, -4.0, HUGE_VAL}), .record = record});
  run(AmaxArgs{.x = make_tensor(DType::kF16, {1}, {HUGE_VAL}), .record = record});
  EXPECT_EQ(fetch_record<QuantizeRecord>(record), (QuantizeRecord{.non_finite = 7, .amax = kInfinityBits}));
}

TEST(Amax, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(140001);
  std::vector<double> values = random_values(n, 1);
  for (const bool bad : {false, true}) {
    if (bad) values[values.size() / 2] = values[values.size() - 10] = NAN;
    const Tensor x = make_tensor(DType::kF32, {n}, values);
    expect_same_bits_on_every_schedule([&] {
      const Tensor record = make_record(QuantizeRecord{});
      run(AmaxArgs{.x = x, .record = record});
      return std::vector<Tensor>{record};
    });
  }
}

TEST(TensorScale, TakesTheAmaxToTheMaximum) {
  device_under_test().on_each_variant([] {
    const auto scale_of = [](uint32_t amax, float max) {
      const Tensor scale = make_unwritten(DType::kF32, {1});
      run(TensorScaleArgs{.record = make_record(QuantizeRecord{.amax = amax}), .max = max, .scale = scale});
      return elements_of<float>(scale)[0];
    };
    EXPECT_EQ(scale_of(bits_of(3.0f), 448.0f), 448.0f / 3.0f);
    EXPECT_EQ(scale_of(bits_of(0.7f), 57344.0f), 57344.0f / 0.7f);
    EXPECT_EQ(scale_of(1, 448.0f), 0x1p126f);
    EXPECT_EQ(scale_of(0, 448.0f), 1.0f);
    EXPECT_EQ(scale_of(kInfinityBits, 448.0f), 1.0f);
    EXPECT_EQ(scale_of(kInfinityBits + 1, 448.0f), 1.0f);
  });
}

// Current scaling: the host is not involved.
TEST(TensorScale, FollowsTheTensorFromRunToRun) {
  const Tensor x = make_tensor(DType::kF32, {67}, random_values(67, 4)), scale = make_unwritten(DType::kF32, {1});
  const Tensor record = make_record(QuantizeRecord{});
  RepeatedWork work([&] {
    run(AmaxArgs{.x = x, .record = record, .mode = GradientMode::kWrite});
    run(TensorScaleArgs{.record = record, .max = 448.0f, .scale = scale});
  });
  for (const float largest : {7.0f, 3.0f}) {
    set_element(x, 40, largest);
    work.run();
    EXPECT_EQ(elements_of<float>(scale)[0], 448.0f / largest);
  }
}

TEST(Amax, RefusesWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {1}, {1.0}), record = make_record(QuantizeRecord{});
  expect_contract_error([&] { run(AmaxArgs{.x = x, .record = Tensor()}); }, "[amax] record must be given");
  expect_contract_error([&] { run(AmaxArgs{.x = x, .record = make_unwritten(DType::kU8, {15})}); },
                        "[amax] record must have 16 elements");
  expect_contract_error([&] { run(AmaxArgs{.x = make_indices({1}), .record = record}); },
                        "[amax] x must be fp32, bf16 or fp16");
  const Tensor scale = make_unwritten(DType::kF32, {1});
  expect_contract_error([&] { run(TensorScaleArgs{.record = record, .max = 0.0f, .scale = scale}); },
                        "[tensor_scale] max must be a format's largest number, got 0");
  expect_contract_error([&] { run(TensorScaleArgs{.record = record, .max = 448.0f, .scale = x.slice(0, 0)}); },
                        "[tensor_scale] scale must have 1 elements");
}

// ---- Delayed scaling step by step, against lists of amaxes.

// One tensor's amaxes, newest first.
struct WrittenOut {
  float max;
  float scale = 1.0f;
  std::deque<float> amaxes{};

  void step(const DelayedScalingOptions& options, float amax) {
    amaxes.push_front(std::isfinite(amax) ? amax : 0.0f);
    if (amaxes.size() > static_cast<size_t>(options.history)) amaxes.pop_back();
    float chosen = amaxes.front();
    if (options.choice == AmaxChoice::kMax) {
      for (const float one : amaxes) chosen = std::max(chosen, one);
    }
    if (chosen > 0.0f) {
      scale = std::min(max / chosen, std::ldexp(1.0f, 126)) / std::exp2(static_cast<float>(options.margin));
    }
  }
};

template <typename Record>
std::vector<Record> records_in(const Tensor& tensor) {
  std::vector<Record> records(tensor.size_bytes() / sizeof(Record));
  read_bytes(tensor, records.data());
  return records;
}

class Steps {
 public:
  Steps(int64_t ranks, int64_t tensors, DelayedScalingOptions options) : ranks_(ranks), tensors_(tensors) {
    std::vector<float> maxima;
    for (int64_t i = 0; i < tensors; ++i) {
      maxima.push_back(i % 2 == 0 ? 448.0f : 57344.0f);
      expected_.push_back({.max = maxima.back()});
    }
    const auto make_records = [&](int64_t count) {
      const auto bytes = static_cast<int64_t>(count * sizeof(QuantizeRecord));
      return Tensor(device_under_test().guarded_storage(static_cast<size_t>(bytes)), DType::kU8, {bytes});
    };
    const auto zeros = static_cast<size_t>(tensors * options.history);
    args_ = {.records = make_records(ranks * tensors),
             .mine = make_records(tensors),
             .total = make_records(tensors),
             .history = make_elements(std::vector<int32_t>(zeros)).view({tensors, options.history}),
             .scales = make_elements(std::vector<float>(static_cast<size_t>(tensors), 1.0f)),
             .maxima = make_elements(maxima),
             .entries = make_indices({0}),
             .decision = make_record(UpdateDecision()),
             .options = options};
  }

  const DelayedScalesArgs& args() const { return args_; }

  // Records chosen by `seed` and `step`, with a decision that has this `held`.
  void prepare(uint64_t seed, uint32_t step, bool held) {
    std::vector<QuantizeRecord> records;
    total_.assign(static_cast<size_t>(tensors_), {});
    for (uint32_t i = 0; i < ranks_ * tensors_; ++i) {
      const float amax = testing::random_amax(philox(seed, {step, i, 0, 0}), step);
      const QuantizeRecord record{.non_finite = std::isfinite(amax) ? 0 : 1 + static_cast<int64_t>(i),
                                  .amax = std::bit_cast<uint32_t>(amax)};
      records.push_back(record);
      QuantizeRecord& total = total_[i % static_cast<size_t>(tensors_)];
      total.amax = std::max(total.amax, record.amax);
      total.non_finite += record.non_finite;
    }
    write_bytes(args_.records, records.data());
    const std::vector<QuantizeRecord> mine(static_cast<size_t>(tensors_), {.non_finite = 3, .amax = 4});
    write_bytes(args_.mine, mine.data());
    UpdateDecision decision;
    decision.held = held;
    write_bytes(args_.decision, &decision);
    for (size_t i = 0; i < expected_.size() && !held; ++i) {
      expected_[i].step(args_.options, std::bit_cast<float>(total_[i].amax));
    }
    entries_ += held ? 0 : 1;
  }

  void expect_right(bool held) const {
    ASSERT_EQ(records_in<QuantizeRecord>(args_.mine), std::vector<QuantizeRecord>(expected_.size()));
    if (!held) {
      ASSERT_EQ(records_in<QuantizeRecord>(args_.total), total_);
    }
    const std::vector<float> scales = elements_of<float>(args_.scales);
    for (size_t i = 0; i < scales.size(); ++i) ASSERT_EQ(scales[i], expected_[i].scale) << "tensor " << i;
    ASSERT_EQ(elements_of<int32_t>(args_.entries)[0], entries_);
  }

 private:
  int64_t ranks_, tensors_;
  DelayedScalesArgs args_{};
  std::vector<WrittenOut> expected_;
  std::vector<QuantizeRecord> total_;
  int32_t entries_ = 0;
};

TEST(DelayedScales, EqualTheWrittenOutStateOverAThousandSteps) {
  struct Case {
    int64_t ranks, tensors;
    DelayedScalingOptions options;
  };
  for (const Case& of :
       {Case{1, 3, {.history = 16}}, Case{3, 5, {.history = 3, .margin = 2}}, Case{2, 33, {.history = 1}},
        Case{4, 1, {.history = 1024}}, Case{2, 2, {.history = 5, .choice = AmaxChoice::kMostRecent, .margin = -1}}}) {
    Steps steps(of.ranks, of.tensors, of.options);
    for (uint32_t step = 0; step < 1000; ++step) {
      const bool held = philox(91, {step, 0, 0, 0})[0] % 8 == 0;
      steps.prepare(23, step, held);
      run(steps.args());
      steps.expect_right(held);
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "step " << step << ", history " << of.options.history;
    }
  }
}

TEST(DelayedScales, AHeldStepChangesNothingButMine) {
  device_under_test().on_each_variant([] {
    Steps steps(2, 5, {.history = 4});
    steps.prepare(7, 0, false);
    run(steps.args());
    const DelayedScalesArgs& args = steps.args();
    const auto state = [&] {
      std::vector<std::vector<std::byte>> bytes;
      for (const Tensor& tensor : {args.total, args.history, args.scales, args.maxima, args.entries}) {
        bytes.push_back(bytes_of(tensor));
      }
      return bytes;
    };
    const auto before = state();
    steps.prepare(8, 1, true);
    run(args);
    EXPECT_EQ(state(), before);
    steps.expect_right(true);
    // An undefined decision does not hold.
    DelayedScalesArgs undecided = args;
    undecided.decision = Tensor();
    steps.prepare(9, 2, false);
    run(undecided);
    steps.expect_right(false);
    EXPECT_NE(state(), before);
  });
}

TEST(DelayedScales, StepsOfARecordingReadAllThatChanges) {
  Steps steps(3, 40, {.history = 3});
  steps.prepare(31, 0, true);  // recorded work runs once before
  RepeatedWork work([&] { run(steps.args()); });
  for (uint32_t step = 1; step < 20; ++step) {
    steps.prepare(31, step, step % 5 == 0);
    work.run();
    steps.expect_right(step % 5 == 0);
  }
}

TEST(DelayedScales, RefuseWhatDoesNotFit) {
  const Steps steps(2, 3, {.history = 4});
  const ExpectRefused expect_refused(steps.args(), "[delayed_scales] ");
  expect_refused([](DelayedScalesArgs& args) { args.records = args.records.slice(0, 95); }, "records must hold");
  expect_refused([](DelayedScalesArgs& args) { args.mine = args.records; }, "mine must have 48 elements");
  expect_refused([](DelayedScalesArgs& args) { args.total = Tensor(); }, "total must be given");
  expect_refused([](DelayedScalesArgs& args) { args.options.history = 5; }, "history must have shape (S, history)");
  expect_refused([](DelayedScalesArgs& args) { args.options.history = 0; }, "a history has at least one entry");
  expect_refused([](DelayedScalesArgs& args) { args.entries = make_indices({0, 0}); }, "entries must have 1 elements");
  expect_refused([](DelayedScalesArgs& args) { args.decision = args.mine; }, "decision must have");
}

}  // namespace scales_test
}  // namespace mantissa::kernel_test
