// Digests: checks of operands, FLOP and bytes.
#include "core/kernels/check_args.h"
#include "core/kernels/digest/args.h"

namespace mantissa {

void check_args(const DigestArgs& args) {
  check_defined("digest", "x", args.x);
  check_record<Digest>("digest", "record", args.record);
}

KernelWork work_of(const DigestArgs& args) { return traffic(bytes_of(args.x) + 2.0 * bytes_of(args.record)); }

}  // namespace mantissa
