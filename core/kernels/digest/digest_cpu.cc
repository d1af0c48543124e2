// Digests of tensors: see digest.h.
#include "core/kernels/check_args.h"
#include "core/kernels/digest/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/digest/digest_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/digest/digest-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

void digest_kernel(const DigestArgs& args, Digest& total) {
  parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t count) {
    RunningDigest of_block;
    of_block.add(args.x, begin, count);
    of_block.add_to(total, begin);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(digest_kernel);

void run(const DigestArgs& args) {
  check_args(args);
  Digest total = read_record<Digest>(args.record);
  HWY_DYNAMIC_DISPATCH(digest_kernel)(args, total);
  write_record(total, args.record);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
