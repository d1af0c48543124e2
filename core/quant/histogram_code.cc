#include "core/quant/histogram_code.h"

#include <fmt/core.h>

#include <cstring>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr int kBitsPerByte = 7;

void put(uint64_t value, std::vector<std::byte>& to) {
  for (; value >= 0x80; value >>= kBitsPerByte) to.push_back(static_cast<std::byte>((value & 0x7f) | 0x80));
  to.push_back(static_cast<std::byte>(value));
}

[[noreturn]] void refuse(const char* what) {
  throw DataError(
      fmt::format("the code of an exponent histogram {}: the data are damaged, or were made by another "
                  "version of this program",
                  what));
}

uint64_t take(std::span<const std::byte>& from) {
  uint64_t value = 0;
  for (int shift = 0; shift < 63; shift += kBitsPerByte) {
    if (from.empty()) refuse("ends within a number");
    const auto byte = static_cast<uint64_t>(from.front());
    from = from.subspan(1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  refuse("has a number of more than 63 bits");
}

}  // namespace

std::vector<std::byte> encode_histogram(const ExponentHistogram& histogram) {
  std::vector<std::byte> code(sizeof(histogram.amax));
  std::memcpy(code.data(), &histogram.amax, sizeof(histogram.amax));
  int next = 0;
  for (int bin = 0; bin < kHistogramBins; ++bin) {
    if (histogram.counts[bin] == 0) continue;
    put(static_cast<uint64_t>(bin - next), code);
    put(static_cast<uint64_t>(histogram.counts[bin]), code);
    next = bin + 1;
  }
  return code;
}

ExponentHistogram decode_histogram(std::span<const std::byte> code) {
  ExponentHistogram histogram;
  if (code.size() < sizeof(histogram.amax)) refuse("is shorter than an amax");
  std::memcpy(&histogram.amax, code.data(), sizeof(histogram.amax));
  code = code.subspan(sizeof(histogram.amax));
  uint64_t next = 0;
  while (!code.empty()) {
    const uint64_t bin = next + take(code);
    if (bin >= static_cast<uint64_t>(kHistogramBins)) refuse("has more bins than there are");
    histogram.counts[bin] = static_cast<int64_t>(take(code));
    next = bin + 1;
  }
  return histogram;
}

}  // namespace mantissa
