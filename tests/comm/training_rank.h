// One rank of a toy training job without a model: parameters of awkward sizes, buckets, reducer, and gradients that are
// a function of (rank, step, parameter, element).
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "comm/gradient_reducer.h"
#include "comm/sharded_optimizer.h"
#include "comm/verdict_reduction.h"
#include "core/backend/registry.h"

namespace mantissa::testing {

// Sizes around the alignment of 64, below and above the capacity of a bucket; two working dtypes. 19,264 elements.
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

// Values of both signs over nine binary orders of magnitude, from 2^-6 to 2^3, with 24 random bits.
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

struct TrainingRank {
  TrainingRank(Communicator& given, const ReducerConfig& config, DType low = DType::kBF16,
               int64_t capacity_bytes = kToyCapacityBytes, const BucketLayout::AlignmentOf& alignment_of = {})
      : communicator(given), backend(create_backend("cpu")), stream(backend->create_stream()) {
    add_toy_parameters(parameters, low);
    buckets = std::make_unique<FlatBuckets>(
        parameters, BucketLayout(parameters, communicator.size(), capacity_bytes, alignment_of), *backend,
        SentBuckets{
            .communicator = &communicator, .gradients = true, .weights = config.sharding == Sharding::kSharded});
    reducer = std::make_unique<GradientReducer>(*buckets, communicator, *backend, *stream, config);
  }

  // What a backward pass would do for one parameter.
  void write_gradient(int parameter, const GradientFunction& gradient) {
    Parameter& target = parameters[parameter];
    float* values = target.gradient.data<float>();
    for (int64_t i = 0; i < target.numel(); ++i) values[i] = gradient(communicator.rank(), parameter, i);
    target.gradient_written = true;
  }
  // A whole reduction; parameters land in reverse order of use.
  void reduce(const GradientFunction& gradient = toy_gradient) {
    parameters.forget_gradients();
    reducer->begin();
    for (int parameter = parameters.size() - 1; parameter >= 0; --parameter) {
      write_gradient(parameter, gradient);
      reducer->ready(parameters[parameter]);
      reducer->progress();
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

  // The verdict about what was reduced; loss: of this rank.
  Verdict verdict_of(VerdictReduction& verdicts, float loss) {
    const Tensor losses = backend->make_tensor(DType::kF32, {1}, "losses");
    backend->upload(&loss, losses, *stream);
    verdicts.plan({});
    verdicts.decide(losses, *reducer);
    return verdicts.read_decision().verdict;
  }

  // An update with these numbers, as a clean verdict would have it. The optimizer is this rank's.
  void update(ShardedOptimizer& optimizer, const AdamWOptions& options, double learning_rate, double unscale = 1.0) {
    constexpr double kNoClipping = std::numeric_limits<double>::infinity();
    const UpdateControl control = control_of(
        UpdateDecision{}, plan_update(options, optimizer.applied_steps(), unscale, kNoClipping, learning_rate));
    const Tensor record = backend->make_record<UpdateControl>("update control");
    backend->upload(&control, record, *stream);
    optimizer.step(*reducer, record);
    optimizer.count_applied_step();
    stream->synchronize();
  }

  Communicator& communicator;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ParameterSet parameters;
  std::unique_ptr<FlatBuckets> buckets;
  std::unique_ptr<GradientReducer> reducer;
};

}  // namespace mantissa::testing
