// A TrainingRank of which two matrices are rounded to 8 bits by delayed scaling, and may be gathered so.
#pragma once

#include <set>

#include "comm/amax_exchange.h"
#include "comm/weight_gather.h"
#include "comm/weight_hash.h"
#include "core/kernels/quantize/args.h"
#include "tests/comm/training_rank.h"

namespace mantissa::testing {

// up.weight and down.weight, in both of their products; the head, of which there is one product, and the table stay as
// they are.
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

  // What a pass does with the weights that are rounded; returns them as the products read them, one after the other.
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
  // The rest of a step behind its pass. An update that is not applied leaves the count of them as it is.
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

// Another one in every step.
inline GradientFunction gradient_of(int step) {
  return
      [step](int rank, int parameter, int64_t element) { return toy_gradient(rank, parameter, element + 7919 * step); };
}

}  // namespace mantissa::testing
