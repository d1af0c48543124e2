#include "comm/sharded_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

// FNV-1a.
uint64_t key_of(std::string_view name, std::string_view tensor) {
  uint64_t key = 0xcbf29ce484222325u;
  for (const std::string_view text : {name, std::string_view("\0", 1), tensor}) {
    for (const char c : text) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return key;
}

// A generator of SplitMix64 (Steele, Lea and Flood 2014): counters that step by the first constant give its stream.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u, kSpread = 0xd1342543de82ef95u;  // both odd
constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The part of the elements `first`, first + 1, ... in a hash; Item is as wide as an element.
template <typename Item>
uint64_t sum_of(const std::vector<std::byte>& bytes, uint64_t first, uint64_t key) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size() / sizeof(Item); ++i) {
    Item bits{};
    std::memcpy(&bits, bytes.data() + i * sizeof(Item), sizeof(Item));
    sum += mixed((key + (first + i) * kStep) ^ (bits * kSpread));
  }
  return sum;
}

// The part of stored (n), whose first element has the index `begin`, in a hash. Downloads a part at a time.
uint64_t hash_of(const Tensor& stored, int64_t begin, uint64_t key, const ShardedState& state) {
  constexpr int64_t kElements = 1 << 20;
  const int64_t width = size_bytes(stored.dtype());
  std::vector<std::byte> bytes;
  uint64_t sum = 0;
  for (int64_t at = 0; at < stored.numel(); at += kElements) {
    const Tensor part = stored.slice(at, std::min(kElements, stored.numel() - at));
    bytes.resize(part.size_bytes());
    state.backend.download(part, bytes.data(), state.stream);
    const auto first = static_cast<uint64_t>(begin + at);
    sum += width == 1   ? sum_of<uint8_t>(bytes, first, key)
           : width == 2 ? sum_of<uint16_t>(bytes, first, key)
           : width == 4 ? sum_of<uint32_t>(bytes, first, key)
                        : sum_of<uint64_t>(bytes, first, key);
  }
  return sum;
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

StateHash hash_state(const ShardedState& state) {
  StateHash mine;
  for (const StatePiece& piece : state.optimizer.pieces()) {
    const auto add = [&](const char* tensor, const Tensor& stored, int64_t begin, uint64_t& sum) {
      if (stored.defined()) sum += hash_of(stored, begin, key_of(piece.parameter->name, tensor), state);
    };
    add("weights", piece.master.defined() ? piece.master : piece.weight, piece.begin, mine.weights);
    add("compensation", piece.compensation, piece.begin, mine.state);
    add("m", piece.m, piece.begin, mine.state);
    add("v", piece.v, piece.begin, mine.state);
    add("m_absmax", piece.m_absmax, piece.begin / kDynamicBlock, mine.state);
    add("v_absmax", piece.v_absmax, piece.begin / kDynamicBlock, mine.state);
  }
  for (const LaneResidual& residual : state.reducer.residuals()) {
    const uint64_t key = key_of(residual.parameter->name, fmt::format("residual {}", residual.lane));
    mine.state += hash_of(residual.values, 0, key, state);
  }
  StateHash all;
  for (const StateHash& rank : all_gather_records(state.communicator, mine)) {
    all.weights += rank.weights;
    all.state += rank.weights + rank.state;
  }
  return all;
}

StateMemory measure_memory(const FlatBuckets& buckets, const GradientReducer& reducer,
                           const ShardedOptimizer& optimizer) {
  return {.weights = buckets.weight_bytes() + optimizer.unrounded_bytes(),
          .gradients = buckets.gradient_bytes(),
          .masters = optimizer.master_bytes(),
          .moments = optimizer.moment_bytes(),
          .buffers = reducer.buffer_bytes() + optimizer.gather_bytes()};
}

}  // namespace mantissa
