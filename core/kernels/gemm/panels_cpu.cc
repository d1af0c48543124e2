// Packs operands for the micro-kernels.
#include "core/kernels/gemm/micro_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gemm/panels_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "core/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- Operands whose lines run along K: panels are their transpose.

using Quad = hn::FixedTag<uint32_t, 4>;

// dst[k * width + line] = src[line][k] for 4 lines and 4 words.
HWY_INLINE void transpose_quad(const uint32_t* const src[4], int64_t k, uint32_t* dst, int64_t width) {
  const Quad d;
  const hn::Repartition<uint64_t, Quad> d64;
  const auto r0 = hn::LoadU(d, src[0] + k), r1 = hn::LoadU(d, src[1] + k), r2 = hn::LoadU(d, src[2] + k),
             r3 = hn::LoadU(d, src[3] + k);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1)),
             low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3)),
             high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1)),
             high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, dst + width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, dst + 2 * width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, dst + 3 * width);
}

// Transposes K word by word, so that a panel is written in order. `width` is a multiple of 4.
HWY_INLINE void transpose_lines(const uint32_t* const* lines, int64_t width, int64_t words, uint32_t* dst) {
  constexpr int64_t kAhead = 32;  // there are too many lines for the hardware prefetcher
  int64_t k = 0;
  for (; k + 4 <= words; k += 4) {
    for (int64_t line = 0; line < width; line += 4) transpose_quad(lines + line, k, dst + k * width + line, width);
    if (k % 16 == 0) {
      for (int64_t line = 0; line < width; ++line) __builtin_prefetch(lines[line] + k + kAhead);
    }
  }
  for (; k < words; ++k) {
    for (int64_t line = 0; line < width; ++line) std::memcpy(dst + k * width + line, lines[line] + k, sizeof(uint32_t));
  }
}

// Words of K widened at a time: 48 such lines fit in the first-level cache.
constexpr int64_t kStretch = 64;
// Zeros in place of lines beyond the operand's; as long as a stretch.
alignas(64) constexpr uint32_t kZeros[kStretch] = {};

// Packs one panel of a stretch of at most kStretch words.
template <typename T>
void pack_stretch(const T* const* lines, int64_t depth, const PackArgs& args, uint32_t* panel) {
  const uint32_t* words[kMaxPanelLines];
  if constexpr (sizeof(T) == sizeof(uint32_t)) {
    for (int64_t i = 0; i < args.width; ++i) words[i] = reinterpret_cast<const uint32_t*>(lines[i]);
    transpose_lines(words, args.width, depth, panel);
  } else if (args.word == GemmWord::kBf16Pair) {
    for (int64_t i = 0; i < args.width; ++i) words[i] = reinterpret_cast<const uint32_t*>(lines[i]);
    const int64_t whole = depth / 2;
    transpose_lines(words, args.width, whole, panel);
    if (depth % 2 == 0) return;
    for (int64_t i = 0; i < args.width; ++i) {
      uint16_t last;
      std::memcpy(&last, lines[i] + depth - 1, sizeof(last));
      panel[whole * args.width + i] = last;
    }
  } else {
    HWY_ALIGN float wide[kMaxPanelLines][kStretch];
    for (int64_t line = 0; line < args.width; ++line) {
      float* const row = wide[line];
      for_each_vector(
          depth, [&](int64_t i, int64_t n) MANTISSA_VECTOR_LAMBDA { store(load(lines[line] + i, n), row + i, n); });
      words[line] = reinterpret_cast<const uint32_t*>(row);
    }
    transpose_lines(words, args.width, depth, panel);
  }
}

template <typename T>
void pack_along_k(const GemmOperand& operand, const PackArgs& args) {
  const int64_t stretch = kStretch * elements_in(args.word);
  for (int64_t p = 0; p < args.panels; ++p) {
    const int64_t first = args.line + p * args.width;
    for (int64_t k = 0; k < args.depth; k += stretch) {
      const T* lines[kMaxPanelLines];
      for (int64_t i = 0; i < args.width; ++i) {
        lines[i] = reinterpret_cast<const T*>(first + i < operand.lines ? operand.at(first + i, args.k + k)
                                                                        : reinterpret_cast<const std::byte*>(kZeros));
      }
      pack_stretch(lines, std::min(stretch, args.depth - k), args,
                   args.panel + p * args.panel_stride + words_in(k, args.word) * args.width);
    }
  }
}

// ---- Operands whose lines lie side by side: a vector holds as many lines as it has lanes.

template <typename T>
HWY_INLINE WordVec widened_words(const T* p, int64_t count) {
  return hn::BitCast(WordTag(), load(p, count));
}

// Lanes beyond `count` are 0.
HWY_INLINE WordVec words_of(const uint16_t* p, int64_t count) {
  const WordTag d;
  const hn::Rebind<uint16_t, WordTag> d16;
  if (count == float_lanes()) return hn::PromoteTo(d, hn::LoadU(d16, p));
  HWY_ALIGN uint16_t buffer[hn::MaxLanes(d)] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return hn::PromoteTo(d, hn::LoadU(d16, buffer));
}

// Distributes the words of a vector over the panels that they fill. kPiece: width of a narrow panel, or 0 for panels at
// least as wide as a vector.
template <int kPiece>
struct Scatter {
  uint32_t* first;
  int64_t panel_stride, pieces;

  HWY_INLINE void operator()(WordVec v, int64_t word_offset) const {
    const WordTag d;
    if constexpr (kPiece == 0) {
      hn::StoreU(v, d, first + word_offset);
    } else {
      HWY_ALIGN uint32_t buffer[hn::MaxLanes(d)];
      hn::Store(v, d, buffer);
      for (int64_t i = 0; i < pieces; ++i) {
        std::memcpy(first + i * panel_stride + word_offset, buffer + i * kPiece, kPiece * sizeof(uint32_t));
      }
    }
  }
};

// The sum of the elements of each lane's word.
HWY_INLINE FloatVec sum_of_words(WordVec v, GemmWord word) {
  const FloatTag df;
  if (word == GemmWord::kFp32) return hn::BitCast(df, v);
  const auto second = hn::And(v, hn::Set(WordTag(), 0xffff0000u));
  return hn::Add(hn::BitCast(df, hn::ShiftLeft<16>(v)), hn::BitCast(df, second));
}

// words(k, offset, count) returns word k of K for lines [offset, offset + count) of the panels' lines. Takes one vector
// of lines by a few words of K at a time: their cache lines also hold the next vectors.
template <int kPiece, typename Words>
HWY_INLINE void pack_side_by_side(const GemmOperand& operand, const PackArgs& args, const Words& words) {
  constexpr int64_t kWordsAtATime = 32;
  const int64_t lanes = float_lanes(), depth = words_in(args.depth, args.word);
  const int64_t lines = args.width * args.panels, valid = std::min(lines, operand.lines - args.line);
  if (args.sums != nullptr) std::fill_n(args.sums, lines, 0.0f);
  for (int64_t begin = 0; begin < depth; begin += kWordsAtATime) {
    const int64_t end = std::min(depth, begin + kWordsAtATime);
    for (int64_t offset = 0; offset < lines; offset += lanes) {
      const int64_t count = std::clamp<int64_t>(valid - offset, 0, lanes), panel = offset / args.width;
      const Scatter<kPiece> scatter{args.panel + panel * args.panel_stride + offset % args.width, args.panel_stride,
                                    std::min(args.panels - panel, lanes / std::max(1, kPiece))};
      if (args.sums == nullptr || count == 0) {
        for (int64_t k = begin; k < end; ++k) {
          scatter(count == 0 ? hn::Zero(WordTag()) : words(k, offset, count), k * args.width);
        }
        continue;
      }
      auto sum = hn::Zero(FloatTag());
      for (int64_t k = begin; k < end; ++k) {
        const auto word = words(k, offset, count);
        scatter(word, k * args.width);
        sum = hn::Add(sum, sum_of_words(word, args.word));
      }
      store(hn::Add(load(args.sums + offset, count), sum), args.sums + offset, count);
    }
  }
}

template <typename Words>
HWY_INLINE void pack_side_by_side(const GemmOperand& operand, const PackArgs& args, const Words& words) {
  if (args.width >= float_lanes()) return pack_side_by_side<0>(operand, args, words);
  args.width == 8 ? pack_side_by_side<8>(operand, args, words) : pack_side_by_side<4>(operand, args, words);
}

// Rows are further apart than the hardware prefetcher looks ahead.
constexpr int64_t kAheadRows = 64;

template <typename T>
void pack_widened(const GemmOperand& operand, const PackArgs& args) {
  const T* const first = reinterpret_cast<const T*>(operand.at(args.line, args.k));
  pack_side_by_side(operand, args, [&](int64_t k, int64_t offset, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const T* const row = first + k * operand.columns + offset;
    __builtin_prefetch(row + kAheadRows * operand.columns);
    return widened_words(row, count);
  });
}

void pack_pairs(const GemmOperand& operand, const PackArgs& args) {
  const uint16_t* const first = reinterpret_cast<const uint16_t*>(operand.at(args.line, args.k));
  const int64_t pairs = args.depth / 2;
  pack_side_by_side(operand, args, [&](int64_t k, int64_t offset, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const uint16_t* const row = first + 2 * k * operand.columns + offset;
    __builtin_prefetch(row + kAheadRows * operand.columns);
    __builtin_prefetch(row + (kAheadRows + 1) * operand.columns);
    const auto even = words_of(row, count);
    return k == pairs ? even : hn::Or(even, hn::ShiftLeft<16>(words_of(row + operand.columns, count)));
  });
}

void pack(const GemmOperand& operand, const PackArgs& args) {
  if (operand.lines_inner && args.word == GemmWord::kBf16Pair) return pack_pairs(operand, args);
  dispatch(operand.dtype, [&]<typename T>() {
    operand.lines_inner ? pack_widened<T>(operand, args) : pack_along_k<T>(operand, args);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(pack);
void pack_panels(const GemmOperand& operand, const PackArgs& args) { HWY_DYNAMIC_DISPATCH(pack)(operand, args); }

void prefetch_panels(const GemmOperand& operand, const PackArgs& args, int64_t part, int64_t parts) {
  constexpr int64_t kLineBytes = 64;
  const int64_t lines = std::min(args.width * args.panels, operand.lines - args.line);
  const int64_t rows = operand.lines_inner ? args.depth : lines;  // as stored
  const int64_t bytes = (operand.lines_inner ? lines : args.depth) * static_cast<int64_t>(size_bytes(operand.dtype));
  for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
    const std::byte* const first =
        operand.lines_inner ? operand.at(args.line, args.k + row) : operand.at(args.line + row, args.k);
    for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_prefetch(first + byte, 0, 2);
  }
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
