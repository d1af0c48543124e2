// out = scale (contributions[0] + contributions[1] + ...), in rank order. Accumulating in fp32, the sum is rounded
// once, to out's dtype; accumulating in the contributions' dtype, it is rounded to that after every addition as well,
// as native 16-bit reductions do. Bound by memory: every contribution is read once, out written once.
// A record asks for one more pass, over out: statistics of chunks other than those of tensor_stats would be other bits.
#include "core/cuda/sum_contributions.h"

#include "core/backend/kernel_checks.h"
#include "core/cuda/device/elementwise.h"
#include "core/cuda/tensor_stats.h"

namespace mantissa::cuda {
namespace {

enum class Rounding : uint8_t { kOnce, kEveryAddition };

template <typename T, typename Out, Rounding kRounding>
struct SumContributions {
  const T* contributions;
  Out* out;
  int64_t ranks, numel;
  float scale;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float sum[Width];
    load<Width>(contributions + i, sum);
#pragma unroll 4
    for (int64_t rank = 1; rank < ranks; ++rank) {
      float term[Width];
      load<Width>(contributions + rank * numel + i, term);
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        sum[k] += term[k];
        if constexpr (kRounding == Rounding::kEveryAddition) sum[k] = widen(narrow<T>(sum[k]));
      }
    }
#pragma unroll
    for (int k = 0; k < Width; ++k) sum[k] *= scale;
    store<Width>(out + i, sum);
  }
};

template <Rounding kRounding, typename T, typename Out>
void run(const SumContributionsArgs& args, const Rows& rows, CudaStream& stream) {
  constexpr int kWidth = kVectorWidth<T, Out>;
  const SumContributions<T, Out, kRounding> operation{args.contributions.data<T>(), args.out.data<Out>(), rows.rows,
                                                      rows.columns, args.scale};
  const bool every_rank_alike = rows.rows == 1 || rows.columns % kWidth == 0;  // else only some ranks are aligned
  const Alignment alignment =
      every_rank_alike ? alignment_of(operation.contributions, operation.out) : Alignment::kSingle;
  run_elementwise<kWidth>(operation, rows.columns, alignment, stream);
}

}  // namespace

void sum_contributions(const SumContributionsArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  dispatch(args.contributions.dtype(), [&]<typename T>() {
    dispatch(args.out.dtype(), [&]<typename Out>() {
      if (args.accumulate == DType::kF32) {
        run<Rounding::kOnce, T, Out>(args, rows, stream);
      } else {
        run<Rounding::kEveryAddition, T, Out>(args, rows, stream);
      }
    });
  });
  if (args.record.defined()) {
    tensor_stats({.x = args.out, .record = args.record, .index_offset = args.index_offset}, stream);
  }
}

}  // namespace mantissa::cuda
