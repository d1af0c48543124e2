// Cast, addition, fill, split into bf16 parts and dropout, in fp32 with one rounding on store: see args.h.
//
// Source of the split: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
// Higher-Precision Computations", ARITH 2019. Dropout depends on the global position alone: neither ranks,
// micro-batches, threads nor vector lengths change it.
#include "core/kernels/elementwise/args.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise/elementwise_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

void cast_kernel(const CastArgs& args) {
  dispatch(args.src.dtype(), args.dst.dtype(), [&]<typename Src, typename Dst>() {
    const Src* src = args.src.data<Src>();
    Dst* dst = args.dst.data<Dst>();
    parallel_blocks(args.src.numel(), [&](int64_t begin, int64_t n) {
      const auto factor = hn::Set(FloatTag(), args.scale);
      for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        store(hn::Mul(load(src + begin + i, count), factor), dst + begin + i, count);
      });
    });
  });
}

void add_kernel(const AddArgs& args) {
  dispatch(args.a.dtype(), args.b.dtype(), args.y.dtype(), [&]<typename A, typename B, typename Y>() {
    const A* a = args.a.data<A>();
    const B* b = args.b.data<B>();
    Y* y = args.y.data<Y>();
    parallel_blocks(args.y.numel(), [&](int64_t begin, int64_t n) {
      for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        store(hn::Add(load(a + begin + i, count), load(b + begin + i, count)), y + begin + i, count);
      });
    });
  });
}

// A finite v rounded to bf16, clamped to the largest finite bf16 number.
HWY_INLINE FloatVec finite_bf16(FloatVec v) {
  const WordTag du;
  const auto bits = bf16_in_upper_half(v), sign = hn::Set(du, 0x80000000u);
  const auto magnitude = hn::Min(hn::AndNot(sign, bits), hn::Set(du, 0x7f7fffffu));
  return hn::BitCast(FloatTag(), hn::And(hn::Or(magnitude, hn::And(sign, bits)), hn::Set(du, 0xffff0000u)));
}

void split_kernel(const SplitArgs& args) {
  const float* const x = args.x.data<float>();
  const int last = args.count() - 1;
  BFloat16* parts[kMostParts] = {};
  for (int part = 0; part <= last; ++part) parts[part] = args.parts[part].data<BFloat16>();
  parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t n) {
    for_each_vector(n, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
      const FloatVec value = load(x + begin + i, lanes);
      const auto finite = hn::IsFinite(value);
      FloatVec rest = hn::IfThenElseZero(finite, value);
      for (int part = 0; part < last; ++part) {
        const FloatVec rounded = finite_bf16(rest);
        store(rounded, parts[part] + begin + i, lanes);
        rest = hn::Sub(rest, rounded);
      }
      store(hn::IfThenElse(finite, finite_bf16(rest), value), parts[last] + begin + i, lanes);
    });
  });
}

// Elements [begin, begin + n) of one sample; begin is a multiple of 4; x and y point at element `begin`.
template <typename X, typename Y>
void dropout_block(const DropoutArgs& args, uint32_t sample, int64_t begin, int64_t n, const X* x, Y* y) {
  const WordTag du;
  const FloatTag df;
  const int64_t lanes = float_lanes();
  const auto factor = hn::Set(df, args.scale());
  const auto limit = hn::Set(du, args.threshold());
  const auto step = static_cast<uint32_t>(*args.step.data<int32_t>());
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(WordTag())];
  for (int64_t done = 0; done < n; done += 4 * lanes) {
    const auto group = hn::Add(hn::Set(du, static_cast<uint32_t>((begin + done) / 4)), hn::Iota(du, 0));
    philox_words(args.seed, group, hn::Set(du, args.site), hn::Set(du, sample), hn::Set(du, step), words);
    const int64_t size = std::min(4 * lanes, n - done);
    for_each_vector(size, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto dropped = hn::RebindMask(df, hn::Lt(hn::Load(du, words + i), limit));
      const auto kept = hn::IfThenZeroElse(dropped, hn::Mul(load(x + done + i, count), factor));
      store(kept, y + done + i, count);
    });
  }
}

void dropout_kernel(const DropoutArgs& args) {
  const int64_t per_sample = args.elements_per_sample;
  const int64_t samples = args.x.numel() / per_sample;
  const int64_t blocks = divide_up(per_sample, kBlockElements);  // block boundaries are multiples of 4
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    const X* x = args.x.data<X>();
    Y* y = args.y.data<Y>();
    parallel_rows(samples * blocks, std::min(per_sample, kBlockElements), [&](int64_t index) {
      const int64_t sample = index / blocks;
      const int64_t begin = index % blocks * kBlockElements;
      const int64_t at = sample * per_sample + begin;
      dropout_block(args, args.first_sample + static_cast<uint32_t>(sample), begin,
                    std::min(kBlockElements, per_sample - begin), x + at, y + at);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

MANTISSA_RUN_KERNEL(CastArgs, cast_kernel)
MANTISSA_RUN_KERNEL(AddArgs, add_kernel)
MANTISSA_RUN_KERNEL(SplitArgs, split_kernel)
MANTISSA_RUN_KERNEL(DropoutArgs, dropout_kernel)

void run(const FillArgs& args) {
  check_args(args);
  const Tensor& dst = args.dst;
  if (!is_floating(dst.dtype())) {
    std::memset(dst.raw(), 0, dst.size_bytes());
    return;
  }
  dispatch(dst.dtype(), [&]<typename T>() {
    T* const data = dst.data<T>();
    const T rounded = from_float<T>(args.value);
    parallel_blocks(dst.numel(), [&](int64_t begin, int64_t count) { std::fill_n(data + begin, count, rounded); });
  });
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
