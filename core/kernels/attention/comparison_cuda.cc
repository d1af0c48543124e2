#include "core/kernels/attention/comparison_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "core/cuda/runtime/runtime.h"
#include "core/tensor/half.h"
#include "core/tensor/philox.h"

namespace mantissa::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr size_t kPieceBytes = size_t{4} << 20;

// Pinned memory for a piece on its way to or from the device: `bytes`, but at most kPieceBytes.
using PinnedPiece = std::unique_ptr<std::byte, decltype(&free_pinned)>;
PinnedPiece pinned_piece(size_t bytes) {
  return {static_cast<std::byte*>(allocate_pinned(std::min(bytes, kPieceBytes))), free_pinned};
}

// Calls body(a's bytes, b's bytes, offset, count) for pieces of both, copied to the host.
template <typename Body>
void for_each_piece(const Tensor& a, const Tensor& b, CudaStream& stream, const Body& body) {
  const size_t total = a.size_bytes();
  const PinnedPiece of_a = pinned_piece(total), of_b = pinned_piece(total);
  for (size_t offset = 0; offset < total; offset += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, total - offset);
    const auto fetch = [&](const Tensor& from, std::byte* to) {
      copy_async(to, static_cast<const std::byte*>(from.raw()) + offset, count, CopyKind::kDeviceToHost,
                 stream.handle());
    };
    fetch(a, of_a.get());
    fetch(b, of_b.get());
    stream.synchronize();
    body(of_a.get(), of_b.get(), offset, count);
  }
}

// Calls body(a's element, b's element, index).
template <typename Body>
void for_each_pair(const Tensor& a, const Tensor& b, CudaStream& stream, const Body& body) {
  dispatch(a.dtype(), [&]<typename T>() {
    for_each_piece(a, b, stream, [&](const std::byte* left, const std::byte* right, size_t offset, size_t count) {
      const auto* x = reinterpret_cast<const T*>(left);
      const auto* y = reinterpret_cast<const T*>(right);
      for (size_t i = 0; i < count / sizeof(T); ++i) {
        body(static_cast<double>(to_float(x[i])), static_cast<double>(to_float(y[i])), offset / sizeof(T) + i);
      }
    });
  });
}

// NaN counts as larger than any number.
double larger(double a, double b) { return std::isnan(b) ? kInfinity : std::max(a, b); }

}  // namespace

Tensor scratch_like(const Tensor& tensor, CudaStream& stream) {
  return {stream.allocate_scratch(tensor.size_bytes(), "attention trial"), tensor.dtype(), tensor.shape()};
}

Tensor made_up_like(const Tensor& tensor, uint64_t seed, float magnitude, CudaStream& stream) {
  const Tensor made = scratch_like(tensor, stream);
  const PinnedPiece host = pinned_piece(made.size_bytes());
  dispatch(tensor.dtype(), [&]<typename T>() {
    constexpr size_t kPieceElements = kPieceBytes / sizeof(T);
    const auto numel = static_cast<size_t>(made.numel());
    T* const values = reinterpret_cast<T*>(host.get());
    for (size_t begin = 0; begin < numel; begin += kPieceElements) {
      const size_t count = std::min(kPieceElements, numel - begin);
      for (size_t i = 0; i < count; i += 4) {  // pieces begin at multiples of 4
        const uint64_t block = (begin + i) / 4;
        const PhiloxCounter words =
            philox(seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0});
        for (size_t j = 0; j < 4 && i + j < count; ++j) {
          values[i + j] = from_float<T>(magnitude * (2.0f * uniform01(words[j]) - 1.0f));
        }
      }
      copy_async(made.raw() + begin * sizeof(T), host.get(), count * sizeof(T), CopyKind::kHostToDevice,
                 stream.handle());
      stream.synchronize();
    }
  });
  return made;
}

void set_elements(const Tensor& tensor, const ElementRow& elements, float value, CudaStream& stream) {
  dispatch(tensor.dtype(), [&]<typename T>() {
    const int64_t most = std::min(elements.count, static_cast<int64_t>(kPieceBytes / sizeof(T)));
    const size_t bytes = static_cast<size_t>(most) * sizeof(T);
    const PinnedPiece host = pinned_piece(bytes);
    std::fill_n(reinterpret_cast<T*>(host.get()), most, from_float<T>(value));
    const std::shared_ptr<Storage> source = stream.allocate_scratch(bytes, "attention trial");
    copy_async(source->data(), host.get(), bytes, CopyKind::kHostToDevice, stream.handle());
    for (int64_t done = 0; done < elements.count; done += most) {
      const int64_t first = elements.first + done * elements.stride;
      copy_rows_async({.dst = tensor.raw() + static_cast<size_t>(first) * sizeof(T),
                       .dst_stride_bytes = static_cast<size_t>(elements.stride) * sizeof(T),
                       .src = source->data(),
                       .src_stride_bytes = sizeof(T),
                       .row_bytes = sizeof(T),
                       .rows = static_cast<size_t>(std::min(most, elements.count - done))},
                      stream.handle());
    }
    stream.synchronize();
  });
}

double element(const Tensor& tensor, int64_t index, CudaStream& stream) {
  double value = 0.0;
  const Tensor one = tensor.slice(index, 1);
  for_each_pair(one, one, stream, [&](double x, double, size_t) { value = x; });
  return value;
}

double attention_error_bound(DType dtype) { return 30 * (dtype == DType::kBF16 ? 0x1p-9 : 0x1p-12); }

double lse_error_bound(const AttentionShape& shape, double operand_magnitude) {
  const double terms = shape.scale * static_cast<double>(shape.head_dim) * operand_magnitude * operand_magnitude;
  return 2 * 0x1p-24 * (32 * (1.0 + terms) + static_cast<double>(shape.sequence_length));
}

double relative_difference(const Tensor& result, const Tensor& reference, std::array<int64_t, 3> column_ends,
                           CudaStream& stream) {
  std::array<double, 3> differences{}, norms{};
  const auto row = static_cast<size_t>(column_ends.back());
  for_each_pair(result, reference, stream, [&](double x, double y, size_t i) {
    const auto column = static_cast<int64_t>(i % row);
    const size_t part = column < column_ends[0] ? 0 : column < column_ends[1] ? 1 : 2;
    differences[part] += (x - y) * (x - y);
    norms[part] += y * y;
  });
  double worst = 0.0;
  for (size_t part = 0; part < norms.size(); ++part) {
    if (differences[part] != 0.0) worst = larger(worst, std::sqrt(differences[part] / norms[part]));
  }
  return worst;
}

double largest_difference(const Tensor& result, const Tensor& reference, CudaStream& stream) {
  double worst = 0.0;
  for_each_pair(result, reference, stream, [&](double x, double y, size_t) { worst = larger(worst, std::abs(x - y)); });
  return worst;
}

bool has_numbers_instead(const Tensor& result, const Tensor& reference, CudaStream& stream) {
  bool found = false;
  for_each_pair(result, reference, stream,
                [&](double x, double y, size_t) { found = found || (std::isfinite(x) && !std::isfinite(y)); });
  return found;
}

bool same_bits(const Tensor& a, const Tensor& b, CudaStream& stream) {
  bool same = true;
  for_each_piece(a, b, stream, [&](const std::byte* left, const std::byte* right, size_t, size_t count) {
    same = same && std::memcmp(left, right, count) == 0;
  });
  return same;
}

}  // namespace mantissa::cuda
