// The sum over lanes: out = scale * the sum of the contributions in the order of the tree of lane_tree.h. With an fp32
// sum, one rounding to out's dtype. With a sum in the addends' dtype, a rounding to that after every addition too, as
// in native 16-bit reductions. Bound by memory: every contribution is read once, out written once. Partial sums, at
// most one for each level of the tree, stay in registers. A record takes another pass over out: only the chunks of
// tensor_stats give its bits.
#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/float8.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cuda {
namespace {

enum class Rounding : uint8_t { kOnce, kEveryAddition };

// T: type of the rows, which may be of codes with block scales behind them. Added: type of the addends, to which the
// rows are rounded if it differs.
template <typename T, typename Added, Rounding kRounding>
struct Contributions {
  const T* rows;
  AnyFloats out;
  int64_t stride, columns;
  float scale_before, scale;

  // slot: where the rows of the slot begin.
  template <int Width>
  __device__ __forceinline__ void load_term(int64_t member, int64_t slot, int64_t i, float (&term)[Width]) const {
    const T* const row = rows + member * stride + slot;
    if constexpr (is_coded(DTypeOf<T>::value)) {
      const auto packed = *reinterpret_cast<const Vector<T, Width>*>(row + i);
      const float block = to_float(E8M0{row[columns + i / kCodeBlock].bits});
#pragma unroll
      for (int k = 0; k < Width; ++k) term[k] = widen(packed.values[k]) * block;
    } else {
      load<Width>(row + i, term);
    }
    if constexpr (!std::is_same_v<Added, T>) {
#pragma unroll
      for (int k = 0; k < Width; ++k) term[k] = widen(narrow<Added>(term[k] * scale_before));
    }
  }

  template <int Width>
  __device__ __forceinline__ void add(const float (&left)[Width], const float (&right)[Width],
                                      float (&sum)[Width]) const {
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      sum[k] = left[k] + right[k];
      if constexpr (kRounding == Rounding::kEveryAddition) sum[k] = widen(narrow<Added>(sum[k]));
    }
  }

  template <int Width>
  __device__ __forceinline__ void store_sum(int64_t i, float (&sum)[Width]) const {
#pragma unroll
    for (int k = 0; k < Width; ++k) sum[k] *= scale;
    store<Width>(out + i, sum);
  }
};

// Row after row.
template <typename T, typename Added, Rounding kRounding>
struct SumChain {
  Contributions<T, Added, kRounding> contributions;
  int64_t members;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float sum[Width];
    contributions.template load_term<Width>(0, 0, i, sum);
#pragma unroll 2
    for (int64_t member = 1; member < members; ++member) {
      float term[Width];
      contributions.template load_term<Width>(member, 0, i, term);
      contributions.template add<Width>(sum, term, sum);
    }
    contributions.template store_sum<Width>(i, sum);
  }
};

// A tree that keeps sums at kLevels levels from `lowest` on. All threads take the same steps, so that branches are
// uniform. Four rows that are a node of the tree are loaded at once and added first. A sum is kept by a choice at each
// level: behind a branch, the compiler addresses kept sums by their level, which puts them into memory.
template <typename T, typename Added, Rounding kRounding, int kLevels>
struct SumTree {
  Contributions<T, Added, kRounding> contributions;
  int64_t slot_stride;
  LaneWalk walk;
  int lowest;

  template <int Width>
  __device__ void apply(int64_t i) const {
    LaneWalk rest = walk;
    float kept[kLevels][Width] = {};
    int64_t to = i;
    for (LaneStep step; rest.next(step);) {
      float sum[Width];
      load_node<Width>(step, i, sum);
      LaneWalk ahead = rest;
      LaneStep others[3];
      if (is_node(step, ahead, others)) {
        float second[Width], third[Width], fourth[Width];
        load_node<Width>(others[0], i, second);
        load_node<Width>(others[1], i, third);
        load_node<Width>(others[2], i, fourth);
        contributions.template add<Width>(sum, second, sum);
        contributions.template add<Width>(third, fourth, third);
        contributions.template add<Width>(sum, third, sum);
        others[2].merged -= 3u << step.node.level;
        step = others[2];
        rest = ahead;
      }
      const uint32_t merged = step.merged >> lowest;
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        if ((merged >> level & 1) != 0) contributions.template add<Width>(kept[level], sum, sum);
      }
      if (step.kept == LaneStep::kResult) {
        contributions.template store_sum<Width>(to, sum);
        to += contributions.columns;
      }
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        const bool is_kept = step.kept == lowest + level;
#pragma unroll
        for (int k = 0; k < Width; ++k) kept[level][k] = is_kept ? sum[k] : kept[level][k];
      }
    }
  }

 private:
  template <int Width>
  __device__ __forceinline__ void load_node(const LaneStep& step, int64_t i, float (&term)[Width]) const {
    contributions.template load_term<Width>(step.member, step.slot * slot_stride, i, term);
  }

  // Whether the next three steps of `walk` complete a node of four with `step`.
  static __device__ __forceinline__ bool is_node(const LaneStep& step, LaneWalk& walk, LaneStep (&others)[3]) {
    bool alike = step.merged == 0;
#pragma unroll
    for (int k = 0; k < 3; ++k) alike = alike && walk.next(others[k]) && others[k].node.level == step.node.level;
    return alike && (others[2].merged >> step.node.level & 3) == 3;
  }
};

// The levels at which a sum keeps partial sums, and whether it adds row after row: two or three members with a node
// each.
struct TreeShape {
  int lowest = kMaxLaneLevels, end = 0;
  bool is_chain = true;

  explicit TreeShape(LaneWalk walk) {
    int64_t row = 0;
    for (LaneStep step; walk.next(step); ++row) {
      const bool adds_one = step.merged != 0 && (step.merged & (step.merged - 1)) == 0;
      is_chain = is_chain && step.slot == 0 && step.member == row && (row == 0 || adds_one);
      if (step.kept == LaneStep::kResult) continue;
      lowest = std::min(lowest, step.kept);
      end = std::max(end, step.kept + 1);
    }
    is_chain = is_chain && row == walk.members;
    lowest = std::min(lowest, end);
  }
};

template <Rounding kRounding, typename T, typename Added>
void sum_as(const SumContributionsArgs& args, CudaStream& stream) {
  constexpr int kWidth = std::min(kVectorWidth<T>, kVectorWidth<BFloat16>);  // of codes, more would spill registers
  const Contributions<T, Added, kRounding> contributions{
      args.contributions.data<T>(), any_floats(args.out), args.stride(), args.columns(), args.scale_before, args.scale};
  const int64_t slot_stride = args.stride_of_slots(), columns = args.columns();
  // Else only some rows, or some rows of out, are aligned.
  const auto all_alike = [&](int64_t elements) { return elements % kWidth == 0; };
  const bool is_single = args.contributions.dim(0) == 1, is_sum = args.out.numel() == columns;
  const Alignment alignment =
      (is_single || (all_alike(args.stride()) && all_alike(slot_stride))) && (is_sum || all_alike(columns))
          ? alignment_of(contributions.rows, args.out.raw())
          : Alignment::kSingle;
  const auto run = [&](const auto& operation) { run_elementwise<kWidth>(operation, columns, alignment, stream); };
  const LaneWalk walk = args.walk();
  const TreeShape tree(walk);
  if (tree.is_chain) return run(SumChain<T, Added, kRounding>{contributions, walk.members});
  const auto run_tree = [&]<int kLevels>(std::integral_constant<int, kLevels>) {
    run(SumTree<T, Added, kRounding, kLevels>{contributions, slot_stride, walk, tree.lowest});
  };
  const int levels = tree.end - tree.lowest;
  if constexpr (kRounding == Rounding::kOnce) {
    if (levels <= 4) return run_tree(std::integral_constant<int, 4>());
    if (levels <= 8) return run_tree(std::integral_constant<int, 8>());
  }
  run_tree(std::integral_constant<int, kMaxLaneLevels>());
}

template <typename T, typename Added>
void sum_rows(const SumContributionsArgs& args, CudaStream& stream) {
  if (args.accumulate == DType::kF32) return sum_as<Rounding::kOnce, T, Added>(args, stream);
  if constexpr (!std::is_same_v<Added, float>) sum_as<Rounding::kEveryAddition, T, Added>(args, stream);
}

}  // namespace

void run(const SumContributionsArgs& args, CudaStream& stream) {
  check_args(args);
  if (args.contributions.dtype() == DType::kE4M3) {
    sum_as<Rounding::kOnce, Float8E4M3, Float8E4M3>(args, stream);
  } else if (args.contributions.dtype() == DType::kE5M2) {
    sum_as<Rounding::kOnce, Float8E5M2, Float8E5M2>(args, stream);
  } else {
    dispatch(args.contributions.dtype(), [&]<typename T>() {
      if constexpr (std::is_same_v<T, float>) {
        dispatch(args.rounded_to, [&]<typename Added>() { sum_rows<float, Added>(args, stream); });
      } else {
        sum_rows<T, T>(args, stream);
      }
    });
  }
  if (args.record.defined()) {
    run(TensorStatsArgs{.x = args.out, .record = args.record, .index_offset = args.index_offset}, stream);
  }
}

}  // namespace mantissa::cuda
