// Ranks of a toy training job without a model: parameters of awkward sizes, buckets, reducer, optimizer, and gradients
// as a function of (rank, step, parameter, element). Also formats of optimizer state, and registered buffers.
#pragma once

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/comm_options.h"
#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "comm/sharded_optimizer.h"
#include "comm/verdict_reduction.h"
#include "core/backend/registry.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/optim/adamw.h"
#include "tests/testing/weight_hash.h"

namespace mantissa::testing {

// Sizes around the alignment of 64, below and above a bucket's capacity; two working dtypes. 19,261 elements.
inline void add_toy_parameters(ParameterSet& parameters, DType low = DType::kBF16) {
  const Init normal{.kind = Init::Kind::kNormal, .stddev = 0.5f};
  parameters.add("embedding.weight", {101, 64}, normal).working_dtype = low;
  parameters.add("norm1.weight", {64}, {.kind = Init::Kind::kOnes});
  parameters.add("norm1.bias", {63}, {});
  parameters.add("up.weight", {65, 64}, normal).working_dtype = low;
  parameters.add("up.bias", {65}, {}).working_dtype = low;
  parameters.add("one", {1}, normal);
  parameters.add("down.weight", {64, 67}, normal).working_dtype = low;
  parameters.add("norm2.weight", {130}, {.kind = Init::Kind::kOnes});
  parameters.add("head.weight", {2, 33, 61}, normal).working_dtype = low;
}

constexpr int64_t kToyCapacityBytes = 3000 * sizeof(float);  // several buckets

using GradientFunction = std::function<float(int rank, int parameter, int64_t element)>;

// Values of both signs with 24 random bits over nine binades, from 2^-6 to 2^3.
inline float toy_gradient(int rank, int parameter, int64_t element) {
  uint64_t word = static_cast<uint64_t>(element) * 0x9e3779b97f4a7c15u +
                  static_cast<uint64_t>(parameter) * 0xbf58476d1ce4e5b9u +
                  static_cast<uint64_t>(rank + 1) * 0x94d049bb133111ebu;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;  // the mixer of SplitMix64
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  word ^= word >> 31;
  const float significand = 1.0f + static_cast<float>(word & 0x7fffffu) * 0x1p-23f;
  const float magnitude = std::ldexp(significand, static_cast<int>((word >> 24) % 9) - 6);
  return word >> 63 ? -magnitude : magnitude;
}

// The definition of the sum over lanes [begin, end): leaf(lane) in fp32, and round() after every addition.
inline float tree_sum(
    int begin, int end, const std::function<float(int)>& leaf,
    const std::function<float(float)>& round = [](float sum) { return sum; }) {
  if (end - begin == 1) return leaf(begin);
  int left = 1;  // the largest power of two below the number of lanes
  while (2 * left < end - begin) left *= 2;
  return round(tree_sum(begin, begin + left, leaf, round) + tree_sum(begin + left, end, leaf, round));
}

struct TrainingRank {
  TrainingRank(const ExchangeGroups& groups, const ReducerConfig& config, DType low = DType::kBF16,
               int64_t capacity_bytes = kToyCapacityBytes, const BucketLayout::AlignmentOf& alignment_of = {},
               int lanes = 0)
      : communicator(groups.all()), backend(create_backend("cpu")), stream(backend->create_stream()) {
    add_toy_parameters(parameters, low);
    buckets = std::make_unique<FlatBuckets>(
        parameters,
        BucketLayout(parameters, {communicator.size(), lanes, groups.sizes()}, capacity_bytes, alignment_of), *backend,
        SentBuckets{.communicator = groups.stages()[0].group,
                    .gradients = true,
                    .weights = config.sharding == Sharding::kSharded && groups.stages().size() == 1});
    reducer = std::make_unique<GradientReducer>(*buckets, groups, *backend, *stream, config);
    step_number = backend->make_tensor(DType::kI32, {1}, "step number");
    unit = backend->make_tensor(DType::kF32, {1}, "factor of the gradients");
    backend->fill(unit, 1.0f, *stream);
  }

  // Stands in for the backward pass of one parameter. With as many lanes as ranks, a rank is a lane.
  void write_gradient(int parameter, const GradientFunction& gradient) {
    write_gradient(parameter, gradient, communicator.rank());
  }
  void write_gradient(int parameter, const GradientFunction& gradient, int lane) {
    Parameter& target = parameters[parameter];
    float* values = target.gradient.data<float>();
    for (int64_t i = 0; i < target.numel(); ++i) values[i] = gradient(lane, parameter, i);
    target.gradient_written = true;
  }
  // A whole reduction; parameters become ready in reverse order of use.
  void reduce(const GradientFunction& gradient = toy_gradient) {
    parameters.forget_gradients();
    ++*step_number.data<int32_t>();
    reducer->begin(step_number, unit);
    const OwnLanes lanes = reducer->lanes();
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) {
      if (lane > lanes.begin) reducer->next_lane();
      for (int parameter = parameters.size() - 1; parameter >= 0; --parameter) {
        write_gradient(parameter, gradient, static_cast<int>(lane));
        reducer->ready(parameters[parameter]);
        reducer->progress();
      }
    }
    reducer->finish();
  }
  // Calls f(parameter, element, value) for every element of the result that this rank holds.
  void for_each_result(const std::function<void(int, int64_t, float)>& f) const {
    for (int bucket = 0; bucket < buckets->size(); ++bucket) {
      const Tensor& result = reducer->result(bucket);
      const int64_t numel = buckets->layout().buckets()[static_cast<size_t>(bucket)].numel;
      const auto segments = result.numel() == numel ? buckets->layout().segments(bucket, 0, numel)
                                                    : buckets->layout().shard_segments(bucket, communicator.rank());
      for (const Segment& segment : segments) {
        for (int64_t i = 0; i < segment.count; ++i) {
          f(segment.parameter, segment.begin + i, result.data<float>()[segment.offset + i]);
        }
      }
    }
  }

  // The verdict on the reduced gradients; `loss` is this rank's.
  Verdict verdict_of(VerdictReduction& verdicts, float loss) {
    const Tensor losses = backend->make_tensor(DType::kF32, {1}, "losses");
    backend->upload(&loss, losses, *stream);
    verdicts.plan({});
    verdicts.decide(losses, *reducer);
    return verdicts.read_decision().verdict;
  }

  // An update with these options, as after a finite verdict. Its weights may be on their way.
  void start_update(ShardedOptimizer& optimizer, const AdamWOptions& options, double learning_rate,
                    double unscale = 1.0) {
    constexpr double kNoClipping = std::numeric_limits<double>::infinity();
    const UpdateControl control = control_of(
        UpdateDecision{}, plan_update(options, optimizer.applied_steps(), unscale, kNoClipping, learning_rate));
    const Tensor record = backend->make_record<UpdateControl>("update control");
    backend->upload(&control, record, *stream);
    optimizer.step(*reducer, record);
    optimizer.count_applied_step();
    stream->synchronize();
  }
  void update(ShardedOptimizer& optimizer, const AdamWOptions& options, double learning_rate, double unscale = 1.0) {
    start_update(optimizer, options, learning_rate, unscale);
    optimizer.await_weights();
    stream->synchronize();
  }

  Communicator& communicator;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ParameterSet parameters;
  std::unique_ptr<FlatBuckets> buckets;
  std::unique_ptr<GradientReducer> reducer;
  Tensor step_number;  // of reduce(), from 1
  Tensor unit;         // the factor of the gradients of reduce()
};

constexpr uint64_t kSeed = 11;
const AdamWOptions kOptions{.beta2 = 0.95f, .weight_decay = 0.1f};

struct OptimizedRank : TrainingRank {
  OptimizedRank(const ExchangeGroups& groups, const ReducerConfig& config, const AdamWOptions& options = kOptions,
                DType low = DType::kBF16, int64_t capacity_bytes = kToyCapacityBytes, int lanes = 0)
      : TrainingRank(groups, config, low, capacity_bytes, state_alignment(options), lanes),
        adamw(options),
        optimizer(*buckets, groups, *backend, *stream, config.sharding, options) {}

  void step(const GradientFunction& gradient = toy_gradient, double learning_rate = 1e-2, double unscale = 1.0) {
    reduce(gradient);
    update(optimizer, adamw, learning_rate, unscale);
  }
  uint64_t hash() { return hash_weights(parameters, *backend, *stream); }
  // Hash of the working weights after `steps` steps with gradient(step).
  uint64_t hash_after(int steps, const std::function<GradientFunction(int step)>& gradient) {
    optimizer.initialize(kSeed);
    for (int step_number = 0; step_number < steps; ++step_number) {
      step(gradient(step_number), 1e-2 / (step_number + 1), 0.25);
    }
    return hash();
  }

  AdamWOptions adamw;
  ShardedOptimizer optimizer;
};

// Rounds up.weight and down.weight in both of their products. The head has a single product, the embedding no product.
class RoundedMatrices final : public PrecisionPolicy {
 public:
  explicit RoundedMatrices(Format format, std::set<std::string> layers = {"up", "down"}) : layers_(std::move(layers)) {
    for (const Product product : {Product::kForward, Product::kInputGradient}) {
      rounded_.linear.set(product, Role::kWeight, TensorFormat{format, Scaling::kDelayed});
    }
  }
  const Precision& at(std::string_view layer) const override {
    return layers_.contains(std::string(layer)) ? rounded_ : plain_;
  }

 private:
  std::set<std::string> layers_;
  Precision plain_{}, rounded_{};
};

struct CodedRun {
  Format format = Format::kE4M3;
  WeightGather gather = WeightGather::kF8;
  AdamWOptions adamw{.beta2 = 0.95f, .weight_decay = 0.1f, .seed = 11};
  DelayedScalingOptions delayed{.history = 2};
  std::set<std::string> layers = {"up", "down"};
};

struct CodedRank : TrainingRank {
  CodedRank(Communicator& communicator, const CodedRun& run, int64_t capacity_bytes = kToyCapacityBytes)
      : TrainingRank(communicator, {.wire = DType::kF32}, DType::kBF16, capacity_bytes, state_alignment(run.adamw)),
        options(run.adamw),
        policy(run.format, run.layers),
        coded(coded_weights(parameters, policy)),
        scales(parameters, policy, run.delayed, *backend, *stream),
        amaxes(scales, communicator, *backend, *stream),
        optimizer(*buckets, communicator, *backend, *stream, Sharding::kSharded, run.adamw,
                  {.weights = run.gather == WeightGather::kF8 ? coded : CodedWeights(), .scales = &scales}) {}

  // Stands in for a pass over the rounded weights. Returns the operands of the products in sequence.
  std::vector<BFloat16> pass() {
    std::vector<BFloat16> operands;
    for (int index = 0; index < parameters.size(); ++index) {
      const auto format = coded.empty() ? std::nullopt : coded[static_cast<size_t>(index)];
      if (!format) continue;
      const Parameter& parameter = parameters[index];
      const DelayedScales::Slot slot = scales.slot(parameter, Role::kWeight, *format);
      const Tensor operand = backend->make_tensor(DType::kBF16, parameter.shape, "operand");
      if (scales.calibrating()) {
        if (!slot.left) backend->run(AmaxArgs{.x = parameter.weight, .record = slot.record}, *stream);
        backend->copy(parameter.weight, operand, *stream);
      } else {
        backend->run(QuantizeArgs{.src = parameter.weight,
                                  .dst = operand,
                                  .format = {*format, Scaling::kDelayed},
                                  .scale = slot.scale,
                                  .record = slot.left ? Tensor() : slot.record},
                     *stream);
      }
      const auto* const values = operand.data<BFloat16>();
      operands.insert(operands.end(), values, values + operand.numel());
    }
    return operands;
  }
  void calibrate() {
    scales.begin_calibration();
    pass();
    optimizer.record_amaxes();
    amaxes.run({});
    scales.end_calibration();
  }
  // The rest of a step after its pass. Counts applied updates only.
  void finish_step(const GradientFunction& gradient, const UpdateDecision& decision = {}) {
    reduce(gradient);
    optimizer.record_amaxes();
    const Tensor decided = backend->make_record<UpdateDecision>("decision"),
                 record = backend->make_record<UpdateControl>("control");
    constexpr double kNoClipping = std::numeric_limits<double>::infinity();
    const UpdateControl control =
        control_of(decision, plan_update(options, optimizer.applied_steps(), 1.0, kNoClipping, 1e-2));
    backend->upload(&decision, decided, *stream);
    backend->upload(&control, record, *stream);
    amaxes.run(decided);
    optimizer.step(*reducer, record);
    if (decision.applied()) optimizer.count_applied_step();
    optimizer.await_weights();
    stream->synchronize();
  }
  uint64_t hash() { return hash_weights(parameters, *backend, *stream); }

  AdamWOptions options;
  RoundedMatrices policy;
  CodedWeights coded;
  DelayedScales scales;
  AmaxExchange amaxes;
  ShardedOptimizer optimizer;
};

// A different gradient in every step.
inline GradientFunction gradient_of(int step) {
  return
      [step](int rank, int parameter, int64_t element) { return toy_gradient(rank, parameter, element + 7919 * step); };
}

// The elements of a tensor of any float dtype; none if it is undefined.
inline std::vector<float> widened(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  dispatch(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(tensor.data<T>()[i]);
  });
  return values;
}

struct NamedState {
  std::string name;
  AdamWOptions options;
  double bytes;  // masters (or compensations) and moments, per element of a large bf16 matrix, without scales
};

// Every format of weights, first moments and second moments, each combined at least once with each of the others.
inline std::vector<NamedState> named_states() {
  using M = MomentFormat;
  using W = MasterWeights;
  const auto state = [](const char* name, M first, M second, W master, double bytes) {
    AdamWOptions options{.beta2 = 0.95f, .weight_decay = 0.1f};
    options.first_moment = first;
    options.second_moment = second;
    options.master = master;
    options.seed = 11;
    return NamedState{name, options, bytes};
  };
  return {state("fp32_all", M::kF32, M::kF32, W::kF32, 12),
          state("bf16_m", M::kBF16, M::kF32, W::kF32, 10),
          state("bf16_m_v", M::kBF16, M::kBF16Stochastic, W::kF32, 8),
          state("bf16_v", M::kF32, M::kBF16Stochastic, W::kF32, 10),
          state("codes", M::kBlockwise8Bit, M::kBlockwise8Bit, W::kF32, 6),
          state("codes_m_bf16_v", M::kBlockwise8Bit, M::kBF16Stochastic, W::kF32, 7),
          state("bf16_m_codes_v", M::kBF16, M::kBlockwise8Bit, W::kF32, 7),
          state("no_master", M::kF32, M::kF32, W::kNoneStochastic, 8),
          state("no_master_bf16_m_v", M::kBF16, M::kBF16Stochastic, W::kNoneStochastic, 4),
          state("no_master_codes", M::kBlockwise8Bit, M::kBlockwise8Bit, W::kNoneStochastic, 2),
          state("kahan", M::kF32, M::kF32, W::kKahan, 10),
          state("kahan_bf16_m_v", M::kBF16, M::kBF16Stochastic, W::kKahan, 6),
          state("kahan_codes", M::kBlockwise8Bit, M::kBlockwise8Bit, W::kKahan, 4)};
}

inline std::string name_of(const ::testing::TestParamInfo<NamedState>& info) { return info.param.name; }

class RecordedRegistrations final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  Registration register_buffers(std::span<const Tensor> buffers) override {
    registered_.insert(registered_.end(), buffers.begin(), buffers.end());
    return Registration(this, [this](const void*) { registered_.clear(); });
  }
  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    note(send);
    note(recv);
    return ForwardingCommunicator::all_to_all(send, recv, stream);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    note(send);
    note(recv);
    return ForwardingCommunicator::all_gather(send, recv, stream);
  }

  int inside() const { return inside_; }    // operands of collectives in registered buffers
  int outside() const { return outside_; }  // and elsewhere
  size_t registered() const { return registered_.size(); }

 private:
  void note(const Tensor& operand) {
    const bool lies_inside = std::any_of(registered_.begin(), registered_.end(), [&](const Tensor& buffer) {
      return buffer.raw() <= operand.raw() &&
             operand.raw() + operand.size_bytes() <= buffer.raw() + buffer.size_bytes();
    });
    ++(lies_inside ? inside_ : outside_);
  }

  std::vector<Tensor> registered_;
  int inside_ = 0, outside_ = 0;
};

}  // namespace mantissa::testing
