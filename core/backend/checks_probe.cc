// Entry checks of the kernels that watch what rounding does to tensors.
#include "core/backend/probe_checks.h"

namespace mantissa {

void check_args(const ExponentHistogramArgs& args) {
  check_float("exponent_histogram", "x", args.x);
  check_record<ExponentHistogram>("exponent_histogram", "record", args.record);
}

}  // namespace mantissa
