// The sum over ranks: out = scale (contributions[0] + contributions[1] + ...), in rank order. With an fp32 sum, one
// rounding to out's dtype. With a sum in the contributions' dtype, a rounding to that after every addition too, as in
// native 16-bit reductions. fp32 contributions to a 16-bit sum are rounded on the fly, without another pass over
// memory.
#include <type_traits>
#include <vector>

#include "core/kernels/reduction/block_stats_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduction/contribution_sum_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/reduction/tensor_stats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// The value that T would store.
template <typename T>
HWY_INLINE FloatVec round_to(FloatVec v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const WordTag du;
    return hn::BitCast(FloatTag(), hn::And(bf16_in_upper_half(v), hn::Set(du, 0xffff0000u)));
  } else {
    HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())];
    store(v, buffer);
    return load(buffer);
  }
}

// T: dtype of the rows. Added: dtype of the addends, to which rows of another dtype are rounded. Sum: dtype of the
// running sum, fp32 or Added.
template <typename Sum, typename Added, typename T, typename Out>
void sum_block(const SumContributionsArgs& args, int64_t begin, int64_t n, Out* out) {
  const T* const rows = args.contributions.data<T>() + begin;
  const int64_t ranks = args.ranks(), stride = args.stride();
  const auto before = hn::Set(FloatTag(), args.scale_before), after = hn::Set(FloatTag(), args.scale);
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto sum = hn::Zero(FloatTag());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      auto term = load(rows + rank * stride + i, count);
      if constexpr (!std::is_same_v<Added, T>) term = round_to<Added>(hn::Mul(term, before));
      sum = rank == 0 ? term : hn::Add(sum, term);
      if constexpr (!std::is_same_v<Sum, float>) sum = round_to<Sum>(sum);
    }
    store(hn::Mul(sum, after), out + i, count);
  });
}

// blocks: null for no statistics.
template <typename Added, typename T>
void sum_rows(const SumContributionsArgs& args, TensorStats* blocks) {
  dispatch(args.out.dtype(), [&]<typename Out>() {
    Out* const out = args.out.data<Out>();
    parallel_blocks(args.out.numel(), [&](int64_t begin, int64_t count) {
      if (args.accumulate == DType::kF32) {
        sum_block<float, Added, T>(args, begin, count, out + begin);
      } else {
        sum_block<Added, Added, T>(args, begin, count, out + begin);
      }
      if (blocks != nullptr) blocks[begin / kBlockElements] = block_stats(out, begin, count);
    });
  });
}

void sum_contributions_kernel(const SumContributionsArgs& args, TensorStats* blocks) {
  dispatch(args.contributions.dtype(), [&]<typename T>() {
    if constexpr (std::is_same_v<T, float>) {
      dispatch(args.rounded_to, [&]<typename Added>() { sum_rows<Added, float>(args, blocks); });
    } else {
      sum_rows<T, T>(args, blocks);
    }
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(sum_contributions_kernel);

void run(const SumContributionsArgs& args) {
  check_args(args);
  if (!args.record.defined()) return HWY_DYNAMIC_DISPATCH(sum_contributions_kernel)(args, nullptr);
  std::vector<TensorStats>& blocks = empty_block_stats(args.out.numel());
  HWY_DYNAMIC_DISPATCH(sum_contributions_kernel)(args, blocks.data());
  add_to_record(blocks, args.record, args.index_offset);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
