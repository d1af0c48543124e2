// Rounding to low-precision formats, and the scales of tensors. Finds a block's amax first. Then reads each element,
// multiplies it, rounds it in fp32 arithmetic and multiplies it again. Results do not depend on how blocks are divided
// over threads: maxima and counts do not depend on the order, and random words belong to elements.
#include "core/kernels/quantize/args.h"

#include <array>
#include <cstring>

#include "core/kernels/check_args.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/quant/scales.h"
#include "core/tensor/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/quantize/quantize_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

constexpr int64_t kColumnsAtATime = 1024;  // in a band of blocks; a multiple of every block length

// A part of a matrix.
struct Part {
  int64_t row, row_end, column, column_end;
};

// Calls body(part) for bands of `height` rows, cut into pieces of kColumnsAtATime, in parallel.
template <typename Body>
void parallel_bands(Rows extents, int64_t height, const Body& body) {
  const int64_t pieces = divide_up(extents.columns, kColumnsAtATime);
  parallel_for(divide_up(extents.rows, height) * pieces, [&](int64_t task) {
    const int64_t row = task / pieces * height, column = task % pieces * kColumnsAtATime;
    body(Part{row, std::min(extents.rows, row + height), column, std::min(extents.columns, column + kColumnsAtATime)});
  });
}

// The random words of stochastic rounding, by element of a matrix: StochasticArgs.
class StochasticWords {
 public:
  // The arguments must have passed check_args().
  explicit StochasticWords(const StochasticArgs& args)
      : per_sample_(args.elements_per_sample),
        seed_(args.seed),
        step_(given() ? static_cast<uint32_t>(*args.step.data<int32_t>()) : 0),
        site_(args.site),
        first_sample_(args.first_sample) {}

  bool given() const { return per_sample_ != 0; }

  // Words of elements [element, element + count) of the matrix. Groups of four neighbours share a counter, which is
  // computed once. The scalar generator is fast enough, since this path only emulates hardware.
  void fill(int64_t element, int64_t count, uint32_t* words) const {
    PhiloxCounter group{};
    int64_t known = -1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = (element + i) / per_sample_, e = (element + i) % per_sample_;
      const int64_t at = sample * per_sample_ + e / 4;
      if (at != known) group = philox(seed_, counter(sample, e / 4)), known = at;
      words[i] = group[static_cast<size_t>(e % 4)];
    }
  }

 private:
  PhiloxCounter counter(int64_t sample, int64_t group) const {
    return {static_cast<uint32_t>(group), site_, first_sample_ + static_cast<uint32_t>(sample), step_};
  }

  int64_t per_sample_;
  uint64_t seed_;
  uint32_t step_, site_, first_sample_;
};

template <typename T>
class Quantizer {
 public:
  explicit Quantizer(const QuantizeArgs& args)
      : round_(args.format.format),
        format_(args.format),
        src_(args.src.data<T>()),
        dst_(data_or_null<BFloat16>(args.dst)),
        codes_(data_or_null<uint8_t>(args.codes)),
        transposed_codes_(data_or_null<uint8_t>(args.transposed_codes)),
        code_scales_(raw_or_null(args.code_scales)),
        transposed_code_scales_(raw_or_null(args.transposed_code_scales)),
        scale_layout_(block_scale_layout(args.format.scaling, args.axis)),
        columns_(args.src.shape().last()),
        rows_(args.src.numel() / columns_),
        tensor_(args.scale.defined() ? *args.scale.data<float>() : 1.0f),
        record_(args.record),
        words_(args.stochastic) {}

  // Rounds elements that have the tensor's scale.
  template <bool kToCodes>
  void run(int64_t begin, int64_t n) const {
    const auto scale = hn::Set(FloatTag(), tensor_);
    VectorAmax found;
    for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto v = load(src_ + begin + i, count);
      found.add(v);
      if constexpr (kToCodes) {
        store_codes(begin + i, round_(hn::Mul(v, scale)), count);
      } else {
        store(rounded(hn::Mul(v, scale), begin + i, count), dst_ + begin + i, count);
      }
    });
    found.add_to(record_);
  }

  // Rounds blocks side by side in the part, as high as the part.
  void run_blocks(const Part& part) const {
    const int64_t length = block_length(format_.scaling);
    for (int64_t column = part.column; column < part.column_end; column += length) {
      run_block({part.row, part.row_end, column, std::min(part.column_end, column + length)});
    }
  }

  // Rounds one block in each column of the part.
  void run_columns(const Part& part) const {
    HWY_ALIGN uint32_t amaxes[hn::MaxLanes(FloatTag())];
    HWY_ALIGN float before[hn::MaxLanes(FloatTag())] = {}, after[hn::MaxLanes(FloatTag())] = {};
    for_each_vector(part.column_end - part.column, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const int64_t column = part.column + i;
      VectorAmax found;
      for (int64_t row = part.row; row < part.row_end; ++row) found.add(load(src_ + at(row, column), count));
      hn::Store(found.lanes(), IntTag(), reinterpret_cast<int32_t*>(amaxes));
      for (int64_t lane = 0; lane < count; ++lane) {
        const BlockFactors factors = block_factors(format_, amaxes[lane], tensor_);
        before[lane] = factors.before, after[lane] = factors.after;
        store_scale(part.row, column + lane, factors.after);
      }
      const auto first = hn::Load(FloatTag(), before), second = hn::Load(FloatTag(), after);
      for (int64_t row = part.row; row < part.row_end; ++row) {
        const int64_t e = at(row, column);
        store_scaled(e, rounded(hn::Mul(load(src_ + e, count), first), e, count), second, count);
      }
      found.add_to(record_);
    });
  }

 private:
  int64_t at(int64_t row, int64_t column) const { return row * columns_ + column; }

  bool makes_codes() const { return codes_ != nullptr || transposed_codes_ != nullptr; }

  // Stores the codes of values that the format has, from `element` on. Without vectors: a CPU makes codes only for
  // other devices to multiply.
  HWY_INLINE void store_codes(int64_t element, FloatVec v, int64_t count) const {
    HWY_ALIGN float values[hn::MaxLanes(FloatTag())];
    hn::Store(v, FloatTag(), values);
    for (int64_t lane = 0; lane < count; ++lane, ++element) {
      const auto code = static_cast<uint8_t>(encode(format_.format, values[lane], Saturation::kNo));
      if (codes_ != nullptr) codes_[element] = code;
      if (transposed_codes_ != nullptr) transposed_codes_[element % columns_ * rows_ + element / columns_] = code;
    }
  }

  // Stores v * after, or the codes of v, from `element` on.
  HWY_INLINE void store_scaled(int64_t element, FloatVec v, FloatVec after, int64_t count) const {
    if (makes_codes()) return store_codes(element, v, count);
    store(hn::Mul(v, after), dst_ + element, count);
  }

  // Stores the scale of the block that begins here, next to its codes.
  void store_scale(int64_t row, int64_t column, float after) const {
    const int64_t length = block_length(format_.scaling);
    if (code_scales_ != nullptr) {
      store_scale(code_scales_, block_scale_index(scale_layout_, rows_, columns_, row, column / length), after);
    }
    if (transposed_code_scales_ != nullptr) {
      store_scale(transposed_code_scales_, block_scale_index(scale_layout_, columns_, rows_, column, row / length),
                  after);
    }
  }
  void store_scale(std::byte* to, int64_t index, float after) const {
    if (format_.scaling == Scaling::kMicro) {
      to[index] = std::byte{micro_scale_of(after).code};
    } else {
      reinterpret_cast<float*>(to)[index] = after;
    }
  }

  // Rounds v, which belongs to the elements of src from `element` on.
  HWY_INLINE FloatVec rounded(FloatVec v, int64_t element, int64_t count) const {
    if (!words_.given()) return round_(v);
    HWY_ALIGN uint32_t words[hn::MaxLanes(FloatTag())] = {};
    words_.fill(element, count, words);
    return round_.stochastic(v, hn::Load(WordTag(), words));
  }

  void run_block(const Part& block) const {
    const int64_t width = block.column_end - block.column;
    VectorAmax found;
    for (int64_t row = block.row; row < block.row_end; ++row) {
      const T* src = src_ + at(row, block.column);
      for_each_vector(width, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { found.add(load(src + i, count)); });
    }
    const BlockFactors factors = block_factors(format_, found.amax(), tensor_);
    store_scale(block.row, block.column, factors.after);
    const auto first = hn::Set(FloatTag(), factors.before), second = hn::Set(FloatTag(), factors.after);
    for (int64_t row = block.row; row < block.row_end; ++row) {
      const int64_t e = at(row, block.column);
      for_each_vector(width, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        const auto scaled = hn::Mul(load(src_ + e + i, count), first);
        store_scaled(e + i, rounded(scaled, e + i, count), second, count);
      });
    }
    found.add_to(record_);
  }

  NarrowRounding round_;
  TensorFormat format_;
  const T* src_;
  BFloat16* dst_;
  uint8_t *codes_, *transposed_codes_;
  std::byte *code_scales_, *transposed_code_scales_;
  BlockScaleLayout scale_layout_;
  int64_t columns_, rows_;
  float tensor_;
  const Tensor& record_;
  StochasticWords words_;
};

// Padding must be 0.
void clear(const Tensor& scales) {
  if (scales.defined()) std::memset(scales.raw(), 0, scales.size_bytes());
}

void quantize_kernel(const QuantizeArgs& args, Rows extents) {
  clear(args.code_scales);
  clear(args.transposed_code_scales);
  dispatch(args.src.dtype(), [&]<typename T>() {
    const Quantizer<T> quantizer(args);
    const int64_t length = block_length(args.format.scaling);
    if (length == 0) {
      parallel_blocks(args.src.numel(), [&](int64_t begin, int64_t count) {
        if (args.makes_codes()) return quantizer.template run<true>(begin, count);
        quantizer.template run<false>(begin, count);
      });
    } else if (args.axis == BlockAxis::kRows) {
      parallel_bands(extents, length, [&](const Part& part) { quantizer.run_columns(part); });
    } else {
      const int64_t height = args.axis == BlockAxis::kBoth ? length : 1;
      parallel_bands(extents, height, [&](const Part& part) { quantizer.run_blocks(part); });
    }
  });
}

// ---- hadamard: transforms 16 rows at a time, with a vector of columns in 16 registers: butterflies between rows, no
// shuffles.

// kHadamardLength rows of `columns` columns.
template <typename X, typename Y>
void transform_rows(const X* x, Y* y, int64_t columns) {
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    FloatVec v[kHadamardLength];
    for (int64_t row = 0; row < kHadamardLength; ++row) {
      v[row] = load(x + row * columns + i, count);
      if (hadamard_negates(row)) v[row] = hn::Neg(v[row]);
    }
    for (int64_t distance = 1; distance < kHadamardLength; distance *= 2) {
      for (int64_t row = 0; row < kHadamardLength; ++row) {
        if ((row & distance) != 0) continue;
        const FloatVec a = v[row], b = v[row + distance];
        v[row] = hn::Add(a, b), v[row + distance] = hn::Sub(a, b);
      }
    }
    for (int64_t row = 0; row < kHadamardLength; ++row) {
      store(hn::Mul(v[row], hn::Set(FloatTag(), 0.25f)), y + row * columns + i, count);
    }
  });
}

void hadamard_kernel(const HadamardArgs& args, Rows extents) {
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    const int64_t block = kHadamardLength * extents.columns;
    parallel_for(extents.rows / kHadamardLength, [&](int64_t index) {
      transform_rows(args.x.data<X>() + index * block, args.y.data<Y>() + index * block, extents.columns);
    });
  });
}

void amax_kernel(const AmaxArgs& args) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t n) {
      VectorAmax found;
      for_each_vector(n,
                      [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { found.add(load(x + begin + i, count)); });
      found.add_to(args.record);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(quantize_kernel);
HWY_EXPORT(hadamard_kernel);
HWY_EXPORT(amax_kernel);

void run(const QuantizeArgs& args) { HWY_DYNAMIC_DISPATCH(quantize_kernel)(args, check_args(args)); }
void run(const HadamardArgs& args) { HWY_DYNAMIC_DISPATCH(hadamard_kernel)(args, check_args(args)); }

// Uses a table of all 256 codes, with the values divided by the scale and rounded to dst's dtype.
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

void run(const AmaxArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) write_record(QuantizeRecord(), args.record);
  HWY_DYNAMIC_DISPATCH(amax_kernel)(args);
}

void run(const TensorScaleArgs& args) {
  check_args(args);
  const auto record = read_record<QuantizeRecord>(args.record);
  *args.scale.data<float>() = mantissa::tensor_scale(record.amax, args.max, 0, 1.0f);
}

void run(const DelayedScalesArgs& args) {
  const auto [ranks, tensors] = check_args(args);
  std::memset(args.mine.raw(), 0, args.mine.size_bytes());
  if (args.decision.defined() && read_record<UpdateDecision>(args.decision).held) return;
  const auto* const records = reinterpret_cast<const QuantizeRecord*>(args.records.raw());
  auto* const total = reinterpret_cast<QuantizeRecord*>(args.total.raw());
  auto* const history = reinterpret_cast<uint32_t*>(args.history.data<int32_t>());
  float* const scales = args.scales.data<float>();
  int32_t& entries = *args.entries.data<int32_t>();
  for (int64_t i = 0; i < tensors; ++i) {
    total[i] = fold_records(records + i, ranks, tensors);
    scales[i] = next_delayed_scale(args.options, history + i * args.options.history, entries, total[i].amax,
                                   args.maxima.data<float>()[i], scales[i]);
  }
  ++entries;
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
