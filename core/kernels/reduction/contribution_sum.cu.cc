// The sum over ranks: out = scale (contributions[0] + contributions[1] + ...), in rank order. With an fp32 sum, one
// rounding to out's dtype. With a sum in the contributions' dtype, a rounding to that after every addition too, as in
// native 16-bit reductions. Bound by memory: every contribution is read once, out written once. A record takes another
// pass over out: only the chunks of tensor_stats give its bits.
#include "core/cuda/device/elementwise.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cuda {
namespace {

enum class Rounding : uint8_t { kOnce, kEveryAddition };

// T: type of the rows. Added: type of the addends, to which the rows are rounded if it differs.
template <typename T, typename Added, typename Out, Rounding kRounding>
struct SumContributions {
  const T* contributions;
  Out* out;
  int64_t ranks, stride;
  float scale_before, scale;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float sum[Width];
    load_term<Width>(contributions + i, sum);
#pragma unroll 4
    for (int64_t rank = 1; rank < ranks; ++rank) {
      float term[Width];
      load_term<Width>(contributions + rank * stride + i, term);
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        sum[k] += term[k];
        if constexpr (kRounding == Rounding::kEveryAddition) sum[k] = widen(narrow<Added>(sum[k]));
      }
    }
#pragma unroll
    for (int k = 0; k < Width; ++k) sum[k] *= scale;
    store<Width>(out + i, sum);
  }

 private:
  template <int Width>
  __device__ void load_term(const T* from, float (&term)[Width]) const {
    load<Width>(from, term);
    if constexpr (!std::is_same_v<Added, T>) {
#pragma unroll
      for (int k = 0; k < Width; ++k) term[k] = widen(narrow<Added>(term[k] * scale_before));
    }
  }
};

template <Rounding kRounding, typename T, typename Added, typename Out>
void sum_as(const SumContributionsArgs& args, CudaStream& stream) {
  constexpr int kWidth = kVectorWidth<T, Out>;
  const int64_t stride = args.stride();
  const SumContributions<T, Added, Out, kRounding> operation{
      args.contributions.data<T>(), args.out.data<Out>(), args.ranks(), stride, args.scale_before, args.scale};
  const bool every_rank_alike = args.ranks() == 1 || stride % kWidth == 0;  // else only some ranks are aligned
  const Alignment alignment =
      every_rank_alike ? alignment_of(operation.contributions, operation.out) : Alignment::kSingle;
  run_elementwise<kWidth>(operation, args.out.numel(), alignment, stream);
}

template <typename Added, typename T>
void sum_rows(const SumContributionsArgs& args, CudaStream& stream) {
  dispatch(args.out.dtype(), [&]<typename Out>() {
    if (args.accumulate == DType::kF32) {
      sum_as<Rounding::kOnce, T, Added, Out>(args, stream);
    } else {
      sum_as<Rounding::kEveryAddition, T, Added, Out>(args, stream);
    }
  });
}

}  // namespace

void run(const SumContributionsArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.contributions.dtype(), [&]<typename T>() {
    if constexpr (std::is_same_v<T, float>) {
      dispatch(args.rounded_to, [&]<typename Added>() { sum_rows<Added, float>(args, stream); });
    } else {
      sum_rows<T, T>(args, stream);
    }
  });
  if (args.record.defined()) {
    run(TensorStatsArgs{.x = args.out, .record = args.record, .index_offset = args.index_offset}, stream);
  }
}

}  // namespace mantissa::cuda
