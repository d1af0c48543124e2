#include "core/cuda/attention_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "core/cuda/runtime.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Calls body(a's bytes, b's bytes, offset, count) for pieces of both, copied to the host.
template <typename Body>
void for_each_piece(const Tensor& a, const Tensor& b, CudaStream& stream, const Body& body) {
  constexpr size_t kPieceBytes = size_t{4} << 20;
  const auto release = [](std::byte* data) { free_pinned(data); };
  const std::unique_ptr<std::byte, decltype(release)> host(static_cast<std::byte*>(allocate_pinned(2 * kPieceBytes)),
                                                           release);
  const size_t total = a.size_bytes();
  for (size_t offset = 0; offset < total; offset += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, total - offset);
    const auto fetch = [&](const Tensor& from, std::byte* to) {
      copy_async(to, static_cast<const std::byte*>(from.raw()) + offset, count, CopyKind::kDeviceToHost,
                 stream.handle());
    };
    fetch(a, host.get());
    fetch(b, host.get() + kPieceBytes);
    stream.synchronize();
    body(host.get(), host.get() + kPieceBytes, offset, count);
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

}  // namespace

double attention_error_bound(DType dtype) { return 30 * (dtype == DType::kBF16 ? 0x1p-9 : 0x1p-12); }

Difference relative_difference(const Tensor& result, const Tensor& reference, std::array<int64_t, 3> column_ends,
                               CudaStream& stream) {
  std::array<double, 3> differences{}, norms{};
  const auto row = static_cast<size_t>(column_ends.back());
  for_each_pair(result, reference, stream, [&](double x, double y, size_t i) {
    const auto column = static_cast<int64_t>(i % row);
    const size_t part = column < column_ends[0] ? 0 : column < column_ends[1] ? 1 : 2;
    differences[part] += (x - y) * (x - y);
    norms[part] += y * y;
  });
  Difference found;
  for (size_t part = 0; part < norms.size(); ++part) {
    found.finite = found.finite && std::isfinite(norms[part]);
    if (differences[part] == 0.0) continue;
    const double error = std::sqrt(differences[part] / norms[part]);
    found.error = std::isnan(error) ? kInfinity : std::max(found.error, error);
  }
  return found;
}

Difference largest_difference(const Tensor& result, const Tensor& reference, CudaStream& stream) {
  Difference found;
  for_each_pair(result, reference, stream, [&](double x, double y, size_t) {
    found.finite = found.finite && std::isfinite(y);
    const double error = std::abs(x - y) / (1.0 + std::abs(y));
    found.error = std::isnan(error) ? kInfinity : std::max(found.error, error);
  });
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
