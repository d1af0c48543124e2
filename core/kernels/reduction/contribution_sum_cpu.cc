// The sum over lanes: out = scale * the sum of the contributions in the order of the tree of lane_tree.h. With an fp32
// sum, one rounding to out's dtype. With a sum in the addends' dtype, a rounding to that after every addition too, as
// in native 16-bit reductions. fp32 contributions to a 16-bit sum are rounded on the fly, without another pass over
// memory.
//
// Bound by memory. Tiles are summed over all rows, tile by tile: partial sums, at most one a level of the tree, stay in
// the L1 cache. Neighbours in the tree are added in registers, up to four at a time. A loop over all rows for each
// vector was tried: from 16 rows on it takes 1.3 to 7 times as long, since so many streams of memory outrun the
// prefetchers and, at strides of a power of two, compete for the same lines of the cache.
#include <bit>
#include <span>
#include <type_traits>
#include <vector>

#include "core/kernels/reduction/block_stats_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduction/contribution_sum_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/reduction/tensor_stats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

constexpr int64_t kTile = 1024;  // elements: a partial sum of 4 KiB
constexpr size_t kLargestGroup = 4;

// The value that T would store.
template <typename T>
HWY_INLINE FloatVec round_to(FloatVec v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const WordTag du;
    return hn::BitCast(FloatTag(), hn::And(bf16_in_upper_half(v), hn::Set(du, 0xffff0000u)));
  } else {
    HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())];
    store(v, buffer);
    return load(buffer);
  }
}

// Vector form of value_of(), for as many codes of e4m3 or e5m2 as a vector has lanes. The places of a code are the
// upper bits of a small fp32 number; a product by a power of two adjusts the exponent.
template <Format kFormat>
HWY_INLINE FloatVec load_codes(const uint8_t* codes) {
  constexpr NarrowFormat kNarrow = narrow_format(kFormat);
  constexpr int kShift = 23 - kNarrow.mantissa_bits;
  const FloatTag df;
  const IntTag di;
  const auto code = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), codes));
  const auto magnitude = hn::And(code, hn::Set(di, 0x7f)), places = hn::ShiftLeft<kShift>(magnitude);
  // min_normal is the number of the code 1 << mantissa_bits, which stands for 2^-126 here.
  const auto finite = hn::Mul(hn::BitCast(df, places), hn::Set(df, kNarrow.min_normal * 0x1p126f));
  const auto infinity = hn::Set(di, static_cast<int32_t>(kInfinityBits));
  const auto is_finite = hn::Lt(magnitude, hn::Set(di, kNarrow.has_infinity ? 0x7c : 0x7f));
  const auto bits = hn::IfThenElse(is_finite, hn::BitCast(di, finite), hn::Or(places, infinity));
  return hn::BitCast(df, hn::Or(bits, hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)))));
}

// A tile of a contribution.
template <typename T>
struct Row {
  const T* numbers;

  HWY_INLINE FloatVec load(int64_t i, int64_t count) const { return HWY_NAMESPACE::load(numbers + i, count); }
};

// The same in codes: vectors are whole, and lie within a block.
template <typename T>
requires(is_coded(DTypeOf<T>::value)) struct Row<T> {
  const T* codes;
  const uint8_t* scales;

  HWY_INLINE FloatVec load(int64_t i, int64_t) const {
    constexpr Format kFormat = std::is_same_v<T, Float8E4M3> ? Format::kE4M3 : Format::kE5M2;
    const auto scale = hn::Set(FloatTag(), to_float(E8M0{scales[i / kCodeBlock]}));
    return hn::Mul(load_codes<kFormat>(&codes[i].bits), scale);
  }
};

template <typename T>
Row<T> row_of(const SumContributionsArgs& args, const LaneStep& step, int64_t begin) {
  const T* const row = args.contributions.data<T>() + step.slot * args.slot_stride + step.member * args.row_stride;
  if constexpr (is_coded(DTypeOf<T>::value)) {
    return {row + begin, &row[args.columns() + begin / kCodeBlock].bits};
  } else {
    return {row + begin};
  }
}

// Rows of a tile, and partial sums to which their sum is added.
template <typename T>
struct Group {
  Row<T> rows[kLargestGroup];
  int merges;
  const float* merged[kMaxLaneLevels];
  float* to;
  float scale_before, scale;
};

// The sum of rows [kFirst, kFirst + kRows) in the order of the tree.
template <typename Sum, typename Added, int kFirst, int kRows, typename T>
HWY_INLINE FloatVec sum_of(const Row<T>* rows, int64_t i, int64_t count, FloatVec before) {
  if constexpr (kRows == 1) {
    const auto value = rows[kFirst].load(i, count);
    if constexpr (std::is_same_v<Added, T>) {
      return value;
    } else {
      return round_to<Added>(hn::Mul(value, before));
    }
  } else {
    constexpr int kLeft = kRows > 2 ? 2 : 1, kRight = kRows - kLeft;
    const auto left = sum_of<Sum, Added, kFirst, kLeft>(rows, i, count, before);
    const auto right = sum_of<Sum, Added, kFirst + kLeft, kRight>(rows, i, count, before);
    return round_to<Sum>(hn::Add(left, right));
  }
}

template <int kRows, typename Sum, typename Added, typename T>
void add_group(const Group<T>& group, int64_t n) {
  // Copies, since a store might change the originals.
  Row<T> rows[kRows];
  for (int row = 0; row < kRows; ++row) rows[row] = group.rows[row];
  const int merges = group.merges;
  float* const to = group.to;
  const auto before = hn::Set(FloatTag(), group.scale_before), after = hn::Set(FloatTag(), group.scale);
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto sum = sum_of<Sum, Added, 0, kRows>(rows, i, count, before);
    for (int k = 0; k < merges; ++k) sum = round_to<Sum>(hn::Add(load(group.merged[k] + i, count), sum));
    store(hn::Mul(sum, after), to + i, count);
  });
}

// The size of the group of steps at the front, at most `most`: their nodes are alike, and the last step merges the sum
// of the others. Three steps are the end of a tree.
inline size_t group_at(std::span<const LaneStep> steps, size_t most) {
  const int level = steps[0].node.level;
  size_t count = 1;
  while (count < std::min(most, steps.size()) && steps[count].node.level == level) ++count;
  for (; count > 1; --count) {
    const auto others = static_cast<uint32_t>(count - 1), bits = std::bit_ceil(others + 1) - 1;
    if ((steps[count - 1].merged >> level & bits) == others) break;
  }
  return count;
}

template <typename T>
void store_tile(const float* sums, T* out, int64_t n) {
  for_each_vector(
      n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { store(load(sums + i, count), out + i, count); });
}

// T: dtype of the rows. Added: dtype of the addends: rows of another dtype are rounded to it. Sum: dtype of the running
// sum, fp32 or Added. Sums elements [begin, begin + n), n <= kTile. Strides are not 0 here.
template <typename Sum, typename Added, typename T>
void sum_tile(const SumContributionsArgs& args, std::span<const LaneStep> steps, int64_t begin, int64_t n) {
  constexpr size_t kMost = std::is_same_v<Sum, float> ? kLargestGroup : 2;  // fewer take less time to compile
  HWY_ALIGN float kept[kMaxLaneLevels][kTile];
  HWY_ALIGN float result[kTile];
  Group<T> group;
  group.scale_before = args.scale_before;
  for (int64_t node = begin; !steps.empty();) {
    const size_t count = group_at(steps, kMost);
    for (size_t row = 0; row < count; ++row) group.rows[row] = row_of<T>(args, steps[row], begin);
    const LaneStep& last = steps[count - 1];
    group.merges = 0;
    uint32_t levels = last.merged & ~(static_cast<uint32_t>(count - 1) << last.node.level);
    for (; levels != 0; levels &= levels - 1) group.merged[group.merges++] = kept[std::countr_zero(levels)];
    const bool is_result = last.kept == LaneStep::kResult, is_wide = args.out.dtype() == DType::kF32;
    group.to = !is_result ? kept[last.kept] : is_wide ? args.out.data<float>() + node : result;
    group.scale = is_result ? args.scale : 1.0f;
    if constexpr (kMost > 2) {
      if (count == 4) add_group<4, Sum, Added>(group, n);
      if (count == 3) add_group<3, Sum, Added>(group, n);
    }
    if (count == 2) add_group<2, Sum, Added>(group, n);
    if (count == 1) add_group<1, Sum, Added>(group, n);
    if (is_result) {
      if (!is_wide) {
        dispatch(args.out.dtype(), [&]<typename Out>() { store_tile(result, args.out.data<Out>() + node, n); });
      }
      node += args.columns();
    }
    steps = steps.subspan(count);
  }
}

// blocks: null for no statistics.
template <typename Sum, typename Added, typename T>
void sum_rows(const SumContributionsArgs& args, std::span<const LaneStep> steps, TensorStats* blocks) {
  const int64_t parts = blocks == nullptr ? 1 : count_stats(args.record);
  parallel_blocks_of_parts(args.columns(), parts, [&](int64_t begin, int64_t count, int64_t block) {
    for (int64_t tile = begin; tile < begin + count; tile += kTile) {
      sum_tile<Sum, Added, T>(args, steps, tile, std::min(kTile, begin + count - tile));
    }
    if (blocks == nullptr) return;
    dispatch(args.out.dtype(),
             [&]<typename Out>() { blocks[block] = block_stats(args.out.data<Out>(), begin, count); });
  });
}

template <typename Added, typename T>
void sum_as(const SumContributionsArgs& args, std::span<const LaneStep> steps, TensorStats* blocks) {
  if (args.accumulate == DType::kF32) return sum_rows<float, Added, T>(args, steps, blocks);
  if constexpr (!std::is_same_v<Added, float>) sum_rows<Added, Added, T>(args, steps, blocks);
}

void sum_contributions_kernel(const SumContributionsArgs& args, std::span<const LaneStep> steps, TensorStats* blocks) {
  if (args.contributions.dtype() == DType::kE4M3) return sum_rows<float, Float8E4M3, Float8E4M3>(args, steps, blocks);
  if (args.contributions.dtype() == DType::kE5M2) return sum_rows<float, Float8E5M2, Float8E5M2>(args, steps, blocks);
  dispatch(args.contributions.dtype(), [&]<typename T>() {
    if constexpr (std::is_same_v<T, float>) {
      dispatch(args.rounded_to, [&]<typename Added>() { sum_as<Added, float>(args, steps, blocks); });
    } else {
      sum_as<T, T>(args, steps, blocks);
    }
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(sum_contributions_kernel);

namespace {

// Valid until the thread's next call.
std::span<const LaneStep> steps_of(LaneWalk walk) {
  thread_local std::vector<LaneStep> steps;
  steps.clear();
  for (LaneStep step; walk.next(step);) steps.push_back(step);
  return steps;
}

}  // namespace

void run(const SumContributionsArgs& args) {
  check_args(args);
  const std::span<const LaneStep> steps = steps_of(args.walk());
  SumContributionsArgs with_strides = args;
  with_strides.row_stride = args.stride();
  with_strides.slot_stride = args.stride_of_slots();
  if (!args.record.defined()) return HWY_DYNAMIC_DISPATCH(sum_contributions_kernel)(with_strides, steps, nullptr);
  std::vector<TensorStats>& blocks = empty_block_stats(args.columns(), count_stats(args.record));
  HWY_DYNAMIC_DISPATCH(sum_contributions_kernel)(with_strides, steps, blocks.data());
  add_to_records(blocks, args.record, args.index_offset);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
