// Values are rounded as vectors and become codes one by one; codes become values by a table of all 256, which holds the
// quotients by the scale as they are stored.
#include "core/cpu/quant/codes.h"

#include <array>

#include "core/backend/quantize_checks.h"
#include "core/quant/narrow_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/quant/codes.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/quant/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename T>
void to_codes_block(const T* src, uint8_t* codes, int64_t n, Format format, float scale) {
  const FloatTag df;
  const NarrowRounding round(format);
  const NarrowFormat narrow = narrow_format(format);
  HWY_ALIGN float rounded[hn::MaxLanes(FloatTag())];
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    hn::Store(round(hn::Mul(load(src + i, count), hn::Set(df, scale))), df, rounded);
    for (int64_t k = 0; k < count; ++k) codes[i + k] = code_of(narrow, rounded[k]);
  });
}

void to_codes_kernel(const ToCodesArgs& args) {
  const float scale = *args.scale.data<float>();
  uint8_t* const codes = args.codes.data<uint8_t>();
  dispatch(args.src.dtype(), [&]<typename T>() {
    const T* src = args.src.data<T>();
    parallel_blocks(args.src.numel(), [&](int64_t begin, int64_t n) {
      to_codes_block(src + begin, codes + begin, n, args.format, scale);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(to_codes_kernel);

void to_codes(const ToCodesArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(to_codes_kernel)(args);
}

void from_codes(const FromCodesArgs& args) {
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
#endif  // HWY_ONCE
