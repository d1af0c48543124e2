#include <fmt/core.h>

#include <array>
#include <optional>

#include "core/base/error.h"
#include "core/tensor/philox.h"
#include "tools/config/config_binding.h"
#include "tools/run/guard/fault_injection.h"

namespace mantissa {
namespace {

// Independent numbers for one fault.
class Draws {
 public:
  Draws(uint64_t seed, size_t fault) : seed_(seed), fault_(static_cast<uint32_t>(fault)) {}

  // In [0, count).
  int64_t below(int64_t count) {
    const auto words = philox(seed_, {fault_, ++drawn_, 0, 0});
    const uint64_t word = (uint64_t{words[0]} << 32) | words[1];
    return static_cast<int64_t>(word % static_cast<uint64_t>(count));
  }
  template <typename T, size_t kSize>
  const T& of(const std::array<T, kSize>& values) {
    return values[static_cast<size_t>(below(kSize))];
  }

 private:
  const uint64_t seed_;
  const uint32_t fault_;
  uint32_t drawn_ = 0;
};

bool is_state(FaultTarget target) {
  return target == FaultTarget::kMaster || target == FaultTarget::kFirstMoment || target == FaultTarget::kSecondMoment;
}

// The rank that saves the state of an element.
int holder_of(const BucketLayout& layout, int parameter, int64_t element) {
  const BucketLayout::Bucket& bucket = layout.bucket(layout.bucket_of(parameter));
  return layout.rank_of_shard((layout.flat_index(parameter, element) - bucket.flat_begin) / bucket.shard_numel);
}

// The format of a target; nothing if there is no such tensor.
std::optional<DType> dtype_of(FaultTarget target, const Parameter& parameter, const AdamWOptions& options,
                              const ShardedState& state) {
  const BucketLayout& layout = state.buckets.layout();
  const StateFormat format = state_format(layout.bucket(layout.bucket_of(parameter.index)), options);
  switch (target) {
    case FaultTarget::kGradient:
      return wide_of(parameter.working_dtype);
    case FaultTarget::kWire:
      if (layout.ranks() == 1 || layout.lanes() > layout.ranks()) return std::nullopt;
      return state.reducer.path() == ContributionPath::kInPlace ? wide_of(parameter.working_dtype)
                                                                : state.reducer.config().wire;
    case FaultTarget::kMaster:
      if (!format.has_master) return std::nullopt;
      return format.master;
    case FaultTarget::kFirstMoment:
      return format.m;
    case FaultTarget::kSecondMoment:
      return format.v;
    case FaultTarget::kWeight:
      return parameter.working_dtype;
  }
  return std::nullopt;
}

// A trainable parameter and one of its elements, each element with the same probability.
void draw_element(Draws& draws, const ParameterSet& parameters, Fault& fault) {
  int64_t element = draws.below(parameters.trainable_numel());
  for (int index = 0; index < parameters.size(); ++index) {
    if (!parameters[index].is_trainable) continue;
    fault.parameter = parameters[index].name;
    fault.element = element;
    if (element < parameters[index].numel()) return;
    element -= parameters[index].numel();
  }
}

PlannedFault draw_fault(const Config& config, size_t index, const ShardedState& state) {
  static constexpr std::array kTargets = {FaultTarget::kGradient,    FaultTarget::kWire,         FaultTarget::kMaster,
                                          FaultTarget::kFirstMoment, FaultTarget::kSecondMoment, FaultTarget::kWeight};
  static constexpr std::array<std::string_view, 6> kPhases = {"data",   "forward", "backward",
                                                              "reduce", "decide",  "update"};
  const RandomFaults& random = config.test.random;
  Draws draws(random.seed, index);
  PlannedFault fault;
  fault.name = fmt::format("test.random[{}]", index);
  fault.kind =
      parse_fault_kind(random.kinds[static_cast<size_t>(draws.below(static_cast<int64_t>(random.kinds.size())))])
          .value_or(FaultKind::kFlip);
  fault.step = 1 + draws.below(config.train.steps);
  fault.rank = static_cast<int>(draws.below(state.communicator.size()));
  if (!fault.changes_value()) {
    const bool writes =
        fault.kind == FaultKind::kShortWrite || fault.kind == FaultKind::kNoSpace || fault.kind == FaultKind::kCorrupt;
    if (writes) {
      fault.rank = 0;  // writes files of every checkpoint
      fault.file = "/checkpoints/";
    } else if (!fault.is_of_files()) {
      fault.phase = fault.kind == FaultKind::kDeadlock ? "reduce" : draws.of(kPhases);
    }
    return fault;
  }
  draw_element(draws, state.parameters(), fault);
  const Parameter& parameter = *state.parameters().find(fault.parameter);
  fault.target = draws.of(kTargets);
  std::optional<DType> dtype = dtype_of(fault.target, parameter, config.optimizer.adamw, state);
  if (!dtype || (fault.kind != FaultKind::kFlip && !is_floating(*dtype))) {
    fault.target = FaultTarget::kGradient;
    dtype = wide_of(parameter.working_dtype);
  }
  fault.bit = static_cast<int>(draws.below(8 * size_bytes(*dtype)));
  if (is_state(fault.target)) fault.rank = holder_of(state.buckets.layout(), parameter.index, fault.element);
  return fault;
}

void require_possible(const PlannedFault& fault, const AdamWOptions& options, const ShardedState& state) {
  if (!fault.changes_value()) return;
  const auto refuse = [&fault](const char* key, const std::string& reason) {
    throw ConfigError("{}.{}: {}", fault.name, key, reason);
  };
  const Parameter* const parameter = state.parameters().find(fault.parameter);
  if (parameter == nullptr) refuse("parameter", fmt::format("the model has no parameter '{}'", fault.parameter));
  if (!parameter->is_trainable) refuse("parameter", fmt::format("'{}' is frozen", fault.parameter));
  if (fault.element < 0 || fault.element >= parameter->numel()) {
    refuse("element", fmt::format("'{}' has {} elements, there is no element {}", fault.parameter, parameter->numel(),
                                  fault.element));
  }
  const std::optional<DType> dtype = dtype_of(fault.target, *parameter, options, state);
  if (!dtype) {
    refuse("target", fault.target == FaultTarget::kWire
                         ? "a rank of several lanes sends sums, one rank nothing: start as many "
                           "ranks as train.lanes, or give gradient"
                         : "this optimizer.master keeps no masters: give weight");
  }
  if (fault.kind == FaultKind::kFlip && fault.bit >= 8 * size_bytes(*dtype)) {
    refuse("bit", fmt::format("{} of '{}' is {}, which has no bit {}", name(fault.target), fault.parameter, *dtype,
                              fault.bit));
  }
  if (fault.kind != FaultKind::kFlip && !is_floating(*dtype)) {
    refuse("kind", fmt::format("{} of '{}' is stored in codes, which have no {}: give flip", name(fault.target),
                               fault.parameter, name(fault.kind)));
  }
  if (!is_state(fault.target)) return;
  const int holder = holder_of(state.buckets.layout(), parameter->index, fault.element);
  if (holder != fault.rank) {
    refuse("rank", fmt::format("rank {} does not save element {} of '{}': give rank {}", fault.rank, fault.element,
                               fault.parameter, holder));
  }
}

}  // namespace

std::string describe(const PlannedFault& fault) {
  const std::string place = fmt::format("rank {}, step {}", fault.rank, fault.step);
  const std::string phase = fault.phase == "none" ? "" : fmt::format(", phase {}", fault.phase);
  const std::string operation =
      fault.operation == FileOperation::kNone ? "" : fmt::format(", before a file's {}", name(fault.operation));
  if (!fault.changes_value()) return fmt::format("{}{}{}, {}", name(fault.kind), operation, phase, place);
  const std::string bit = fault.kind == FaultKind::kFlip ? fmt::format(" of bit {}", fault.bit) : "";
  return fmt::format("{}{} in {}, element {} of '{}', {}", name(fault.kind), bit, name(fault.target), fault.element,
                     fault.parameter, place);
}

std::vector<PlannedFault> plan_faults(const Config& config, const ShardedState& state) {
  std::vector<PlannedFault> faults;
  for (size_t i = 0; i < config.test.faults.size(); ++i) {
    faults.push_back({config.test.faults[i], fmt::format("test.faults[{}]", i)});
    require_possible(faults.back(), config.optimizer.adamw, state);
  }
  for (size_t i = 0; i < static_cast<size_t>(config.test.random.count); ++i) {
    faults.push_back(draw_fault(config, i, state));
  }
  return faults;
}

}  // namespace mantissa
