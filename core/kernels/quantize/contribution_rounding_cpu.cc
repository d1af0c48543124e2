// Rounds the gradient of a lane as it is sent: dst = round(src * scale). 8-bit codes have a power of two as scale for
// each block of 32, so that only the rounding to the code is inexact: two passes over a block in the nearest cache, the
// first for its largest finite magnitude. Formats and their rounding: core/quant/narrow_format.h, core/tensor/half.h.
#include "core/kernels/quantize/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/quantize/contribution_rounding_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/optimizer/adamw-inl.h"
#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

constexpr int64_t kWordsAtATime = 64;  // a multiple of four vectors

// The numbers to round: src * scale, with error feedback also the residual.
class Input {
 public:
  explicit Input(const RoundContributionArgs& args) : src_(args.src.data<float>()), scale_(args.scale) {
    if (!args.has_feedback()) return;
    const auto turn = static_cast<size_t>(*args.applied.data<int32_t>() & 1);
    residual_ = args.residuals[turn].data<float>();
    next_ = args.residuals[1 - turn].data<float>();
    factor_ = *args.unit.data<float>() * scale_;
  }

  HWY_INLINE FloatVec read(int64_t i, int64_t count) const {
    const auto v = hn::Mul(load(src_ + i, count), hn::Set(FloatTag(), scale_));
    if (residual_ == nullptr) return v;
    const auto residual = load(residual_ + i, count);
    const auto owed = hn::Mul(hn::IfThenElseZero(hn::IsFinite(residual), residual), hn::Set(FloatTag(), factor_));
    return hn::Add(v, owed);
  }
  bool keeps() const { return next_ != nullptr; }
  // Keeps v - rounded, v from read().
  HWY_INLINE void keep(FloatVec v, FloatVec rounded, int64_t i, int64_t count) const {
    const auto left = hn::Mul(hn::Sub(v, rounded), hn::Set(FloatTag(), 1.0f / factor_));
    store(hn::IfThenElseZero(hn::IsFinite(left), left), next_ + i, count);
  }

 private:
  const float *src_, *residual_ = nullptr;  // null without error feedback
  float* next_ = nullptr;
  float scale_, factor_ = 1.0f;
};

// Calls body(begin, count, words) for pieces of [0, n), in parallel; words: null to round to nearest.
template <typename Body>
void for_each_piece(const RoundContributionArgs& args, const Body& body) {
  parallel_blocks(args.src.numel(), [&](int64_t block, int64_t n) {
    HWY_ALIGN uint32_t words[kWordsAtATime];
    for (int64_t begin = block; begin < block + n; begin += kWordsAtATime) {
      const int64_t count = std::min(kWordsAtATime, block + n - begin);
      if (!args.step.defined()) {
        body(begin, count, nullptr);
        continue;
      }
      const auto step = static_cast<uint32_t>(*args.step.data<int32_t>());
      for (int64_t i = 0; i < count; i += 4 * float_lanes()) {
        element_words(args.key, args.parameter, step, begin + i, words + i);
      }
      body(begin, count, words);
    }
  });
}

class BlockRounding {
 public:
  explicit BlockRounding(const RoundContributionArgs& args)
      : format_(narrow_format(format_of(args.wire))),
        round_(format_of(args.wire)),
        input_(args),
        numbers_(args.dst.dtype() == DType::kF32 ? args.dst.data<float>() : nullptr),
        bytes_(reinterpret_cast<uint8_t*>(args.dst.raw())),
        first_(args.first),
        row_numel_(numbers_ != nullptr ? 0 : coded_row_numel(args.dst.dim(1))) {}

  void run(int64_t begin, const uint32_t* words) const {
    auto largest = hn::Zero(IntTag());
    for_each_vector(kCodeBlock, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto bits = magnitude_bits(input_.read(begin + i, count));
      const auto is_finite = hn::Lt(bits, hn::Set(IntTag(), static_cast<int32_t>(kInfinityBits)));
      largest = hn::Max(largest, hn::IfThenElseZero(is_finite, bits));
    });
    const auto amax = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(IntTag(), largest)));
    const E8M0 stored = microscale(amax, format_.max);
    const auto before = hn::Set(FloatTag(), multiplier_of(stored)), after = hn::Set(FloatTag(), to_float(stored));
    uint8_t* codes = bytes_;
    if (numbers_ == nullptr) {
      const int64_t row = (first_ + begin) / row_numel_, column = (first_ + begin) % row_numel_;
      codes += row * coded_row_bytes(row_numel_);
      codes[row_numel_ + column / kCodeBlock] = stored.code;
      codes += column;
    }
    for_each_vector(kCodeBlock, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto input = input_.read(begin + i, count), v = hn::Mul(input, before);
      const auto rounded = words == nullptr ? round_(v) : round_.stochastic(v, hn::Load(WordTag(), words + i));
      const auto number = hn::Mul(rounded, after);
      if (input_.keeps()) input_.keep(input, number, begin + i, count);
      if (numbers_ != nullptr) return store(number, numbers_ + begin + i);
      round_.store_codes(rounded, codes + i);
    });
  }

 private:
  NarrowFormat format_;
  NarrowRounding round_;
  Input input_;
  float* numbers_;  // null: codes are stored
  uint8_t* bytes_;
  int64_t first_, row_numel_;
};

void round_contribution_kernel(const RoundContributionArgs& args) {
  if (is_coded(args.wire)) {
    const BlockRounding rounding(args);
    return for_each_piece(args, [&](int64_t begin, int64_t count, const uint32_t* words) {
      for (int64_t i = 0; i < count; i += kCodeBlock) rounding.run(begin + i, words == nullptr ? nullptr : words + i);
    });
  }
  const auto round_to = [&]<typename T>(T* dst) {
    const Input input(args);
    for_each_piece(args, [&](int64_t begin, int64_t n, const uint32_t* words) {
      for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        const auto v = input.read(begin + i, count);
        T* const to = dst + begin + i;
        words == nullptr ? store(v, to, count) : store_stochastically(v, hn::Load(WordTag(), words + i), to, count);
        if (input.keeps()) input.keep(v, load(to, count), begin + i, count);
      });
    });
  };
  args.wire == DType::kBF16 ? round_to(args.dst.data<BFloat16>()) : round_to(args.dst.data<Float16>());
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

MANTISSA_RUN_KERNEL(RoundContributionArgs, round_contribution_kernel)

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
