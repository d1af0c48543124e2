#include "comm/sharded_state.h"

#include <cmath>

#include "core/kernels/elementwise/args.h"

namespace mantissa {
namespace {

constexpr const char* kPartNames[] = {"master", "first moment m", "second moment v"};  // by Found::part

struct Found {
  int32_t parameter = -1;
  int32_t part = 0;
  int64_t element = 0;
  int32_t rank = -1;
  float value = 0.0f;

  auto place() const { return std::tuple(parameter, part, element); }
};

// The first fault in `stored` (n), from element `begin` of its parameter on. `stride`: elements per stored value.
void search(const Tensor& stored, int64_t begin, int64_t stride, const ShardedState& state, Found& found) {
  Tensor wide = stored;
  if (stored.dtype() != DType::kF32) {
    wide = state.backend.make_tensor(DType::kF32, stored.shape(), "optimizer state in fp32");
    state.backend.run(CastArgs{.src = stored, .dst = wide}, state.stream);
  }
  std::vector<float> values(static_cast<size_t>(wide.numel()));
  state.backend.download(wide, values.data(), state.stream);
  const auto bad = std::find_if(values.begin(), values.end(), is_state_fault);
  found.element = bad == values.end() ? -1 : begin + (bad - values.begin()) * stride;
  if (found.element >= 0) found.value = *bad;
}

// On this rank.
Found find(const ShardedState& state) {
  Found first;
  for (const StatePiece& piece : state.optimizer.pieces()) {
    const auto moment = [](const Tensor& values, const Tensor& absmax) { return absmax.defined() ? absmax : values; };
    const Tensor parts[] = {piece.master.defined() ? piece.master : piece.weight, moment(piece.m, piece.m_absmax),
                            moment(piece.v, piece.v_absmax)};
    for (int32_t part = 0; part < 3; ++part) {
      Found found{.parameter = piece.parameter->index, .part = part, .rank = state.communicator.rank()};
      const bool has_blocks = (part == 1 && piece.m_absmax.defined()) || (part == 2 && piece.v_absmax.defined());
      search(parts[part], piece.begin, has_blocks ? kDynamicBlock : 1, state, found);
      if (found.element >= 0 && (first.parameter < 0 || found.place() < first.place())) first = found;
    }
  }
  return first;
}

}  // namespace

bool has_state_faults(const ShardedState& state) {
  int32_t mine = 0;
  if (state.backend.computes()) state.backend.download(state.optimizer.faults(), &mine, state.stream);
  const std::vector<int32_t> all = all_gather_records(state.communicator, mine);
  return std::any_of(all.begin(), all.end(), [](int32_t faults) { return faults != 0; });
}

std::string describe_state_faults(const ShardedState& state) {
  Found first;
  for (const Found& found : all_gather_records(state.communicator, find(state))) {
    if (found.parameter >= 0 && (first.parameter < 0 || found.place() < first.place())) first = found;
  }
  if (first.parameter < 0) return "";
  const std::string value = std::isnan(first.value)   ? "NaN"
                            : std::isinf(first.value) ? "Inf"
                                                      : fmt::format("{:g}", first.value);
  return fmt::format("the {} of '{}' is {} at element {}, on rank {}", kPartNames[static_cast<size_t>(first.part)],
                     state.parameters()[first.parameter].name, value, first.element, first.rank);
}

}  // namespace mantissa
