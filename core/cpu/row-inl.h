// Rows of a dtype chosen at run time, processed as fp32. A row of a few thousand elements stays in the first-level
// cache. So a kernel with several passes is written once, for fp32, and converts at both ends. Also sums over rows.
#if defined(MANTISSA_CORE_CPU_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_ROW_INL_H_
#undef MANTISSA_CORE_CPU_ROW_INL_H_
#else
#define MANTISSA_CORE_CPU_ROW_INL_H_
#endif

#include <cstddef>
#include <optional>
#include <type_traits>

#include "core/cpu/simd-inl.h"
#include "core/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Reads rows of `columns` elements of a (R, columns) tensor.
class RowReader {
 public:
  RowReader(const Tensor& tensor, int64_t columns)
      : base_(tensor.raw()),
        columns_(columns),
        stride_bytes_(columns * size_bytes(tensor.dtype())),
        convert_(dispatch(tensor.dtype(), []<typename T>() -> Convert { return &convert<T>; })) {}

  // The row as fp32: in place if it is fp32, else converted into `scratch` (columns).
  const float* read(int64_t row, float* scratch) const {
    return convert_(base_ + row * stride_bytes_, columns_, scratch);
  }

 private:
  using Convert = const float* (*)(const std::byte*, int64_t, float*);

  template <typename T>
  static const float* convert(const std::byte* source, int64_t n, float* scratch) {
    const T* p = reinterpret_cast<const T*>(source);
    if constexpr (std::is_same_v<T, float>) {
      return p;
    } else {
      for_each_vector(
          n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { store(load(p + i, count), scratch + i, count); });
      return scratch;
    }
  }

  const std::byte* base_;
  int64_t columns_, stride_bytes_;
  Convert convert_;
};

// Writes rows of a (R, columns) tensor, or adds to them. The fp32 result (or sum) is rounded once.
class RowWriter {
 public:
  RowWriter(const Tensor& tensor, int64_t columns, GradientMode mode)
      : base_(tensor.raw()),
        columns_(columns),
        stride_bytes_(columns * size_bytes(tensor.dtype())),
        direct_(tensor.dtype() == DType::kF32 && mode == GradientMode::kWrite),
        convert_(dispatch(tensor.dtype(), [&]<typename T>() -> Convert {
          return mode == GradientMode::kAccumulate ? &convert<T, true> : &convert<T, false>;
        })) {}

  // Destination for the fp32 values of the row: the tensor itself, or `scratch` (columns). Call finish() afterwards.
  float* target(int64_t row, float* scratch) const {
    return direct_ ? reinterpret_cast<float*>(base_ + row * stride_bytes_) : scratch;
  }
  void finish(int64_t row, const float* scratch) const {
    if (!direct_) convert_(scratch, base_ + row * stride_bytes_, columns_);
  }

 private:
  using Convert = void (*)(const float*, std::byte*, int64_t);

  template <typename T, bool kAdd>
  static void convert(const float* source, std::byte* destination, int64_t n) {
    T* p = reinterpret_cast<T*>(destination);
    for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      auto v = load(source + i, count);
      if constexpr (kAdd) v = hn::Add(load(p + i, count), v);
      store(v, p + i, count);
    });
  }

  std::byte* base_;
  int64_t columns_, stride_bytes_;
  bool direct_;
  Convert convert_;
};

// Reads rows of x, or of x + residual. A sum is stored in `sum` and read back as stored. Undefined residual and sum: no
// sum.
class SumReader {
 public:
  SumReader(const Tensor& x, const Tensor& residual, const Tensor& sum, int64_t columns)
      : x_(x, columns), columns_(columns) {
    if (sum.defined()) sum_.emplace(residual, sum, columns);
  }

  // Like RowReader::read(). With a sum, both scratch rows (columns) are needed. The stored sum is still in the cache
  // when it is read back.
  const float* read(int64_t row, float* scratch, float* residual_scratch) const {
    const float* x = x_.read(row, scratch);
    if (!sum_) return x;
    const float* residual = sum_->residual.read(row, residual_scratch);
    float* sum = sum_->writer.target(row, scratch);
    for_each_vector(columns_, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store(hn::Add(load(x + i, count), load(residual + i, count)), sum + i, count);
    });
    sum_->writer.finish(row, sum);
    return sum_->reader.read(row, scratch);
  }

 private:
  struct Sum {
    Sum(const Tensor& from, const Tensor& to, int64_t columns)
        : residual(from, columns), writer(to, columns, GradientMode::kWrite), reader(to, columns) {}
    RowReader residual;
    RowWriter writer;
    RowReader reader;
  };

  RowReader x_;
  int64_t columns_;
  std::optional<Sum> sum_;
};

// Second half of a sum over rows, see RowBlocks: out[c] (+)= sum of partials[b * stride + c] over b in [0, blocks), c
// in [0, columns).
HWY_INLINE void add_partial_sums(const float* partials, int64_t blocks, int64_t stride, int64_t columns, float* out,
                                 GradientMode mode) {
  for_each_vector(columns, [&](int64_t c, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto sum = hn::Zero(FloatTag());
    for (int64_t block = 0; block < blocks; ++block) sum = hn::Add(sum, load(partials + block * stride + c, count));
    if (mode == GradientMode::kAccumulate) sum = hn::Add(load(out + c, count), sum);
    store(sum, out + c, count);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
