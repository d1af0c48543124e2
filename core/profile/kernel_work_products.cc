// Work of matrix products, and of attention, which is made of them.
#include "core/profile/kernel_work.h"
#include "core/profile/operand_bytes.h"

namespace mantissa {
namespace {

// FLOP of one product of attention: scores from queries and keys, or any of the others, which are as large.
template <typename Args>
double product_flops(const Args& args) {
  const auto length = static_cast<double>(args.sequence_length);
  const double pairs = args.mask == Mask::kCausal ? length * (length + 1.0) / 2.0 : length * length;
  return 2.0 * static_cast<double>(args.batch * args.num_heads * args.head_dim) * pairs;
}

}  // namespace

KernelWork work_of(const GemmArgs& args) {
  const auto m = static_cast<double>(args.c.dim(0)), n = static_cast<double>(args.c.dim(1));
  const auto k = static_cast<double>(args.a.dim(args.trans_a == Transpose::kYes ? 0 : 1));
  return {.flops = 2.0 * m * n * k,
          .bytes = bytes_of(args.a, args.b, args.bias, args.aux, args.a_block_scales, args.b_block_scales) +
                   result_bytes(args.c, args.mode),
          .dtype = args.a.dtype()};
}

KernelWork work_of(const AttentionForwardArgs& args) {
  return {
      .flops = 2.0 * product_flops(args), .bytes = bytes_of(args.qkv, args.out, args.lse), .dtype = args.qkv.dtype()};
}

KernelWork work_of(const AttentionBackwardArgs& args) {
  return {.flops = 5.0 * product_flops(args),
          .bytes = bytes_of(args.qkv, args.out, args.lse, args.d_out, args.d_qkv),
          .dtype = args.qkv.dtype()};
}

}  // namespace mantissa
