// Uses a table of all 256 codes, with the values divided by the scale and rounded to dst's dtype.
#include "core/kernels/quantize/args.h"

#include <array>

#include "core/cpu/parallel.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cpu {

void run(const FromCodesArgs& args) {
  check_args(args);
  const NarrowFormat format = narrow_format(args.format);
  const float scale = *args.scale.data<float>();
  const uint8_t* const codes = args.codes.data<uint8_t>();
  dispatch(args.dst.dtype(), [&]<typename T>() {
    std::array<T, 256> values;
    for (size_t code = 0; code < values.size(); ++code) {
      values[code] = from_float<T>(unscaled_value_of(format, static_cast<uint8_t>(code), scale));
    }
    T* const dst = args.dst.data<T>();
    parallel_blocks(args.dst.numel(), [&](int64_t begin, int64_t n) {
      for (int64_t i = begin; i < begin + n; ++i) dst[i] = values[codes[i]];
    });
  });
}

}  // namespace mantissa::cpu
