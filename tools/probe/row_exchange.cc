#include "tools/probe/row_exchange.h"

#include <algorithm>
#include <cstring>

#include "core/quant/histogram_code.h"

namespace mantissa {
namespace {

// What a row says besides names and histogram.
struct Numbers {
  uint32_t histogram_bytes = 0;
  uint32_t padding = 0;
  FormatLosses losses{};
  ErrorSums error{};
  double batch_noise = 0.0;
  UpdateStagnation stagnation{};
};

template <typename T>
void put(const T& value, std::vector<std::byte>& to) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof(value));
}

std::vector<std::byte> encode(const std::vector<ProbeRow>& rows) {
  std::vector<std::byte> bytes;
  for (const ProbeRow& row : rows) {
    const auto histogram = encode_histogram(row.histogram);
    put(Numbers{.histogram_bytes = static_cast<uint32_t>(histogram.size()),
                .padding = 0,
                .losses = row.losses,
                .error = row.error,
                .batch_noise = row.batch_noise,
                .stagnation = row.stagnation},
        bytes);
    bytes.insert(bytes.end(), histogram.begin(), histogram.end());
  }
  return bytes;
}

// Takes the next row of what encode() made.
ProbeRow take_row(std::span<const std::byte>& from) {
  Numbers numbers;
  std::memcpy(&numbers, from.data(), sizeof(numbers));
  from = from.subspan(sizeof(numbers));
  ProbeRow row;
  row.histogram = decode_histogram(from.first(numbers.histogram_bytes));
  from = from.subspan(numbers.histogram_bytes);
  row.losses = numbers.losses;
  row.error = numbers.error;
  row.batch_noise = numbers.batch_noise;
  row.stagnation = numbers.stagnation;
  return row;
}

}  // namespace

std::vector<ProbeRow> sum_over_ranks(Communicator& communicator, std::vector<ProbeRow> mine) {
  if (communicator.size() == 1) return mine;
  const auto counts = all_gather_records(communicator, mine.size());
  const auto all = all_gather_varied(communicator, encode(mine));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    MANTISSA_CHECK(counts[rank] == mine.size(), "[row_exchange] rank {} has {} rows, this rank has {}", rank,
                   counts[rank], mine.size());
    std::span<const std::byte> from = all[rank];
    for (ProbeRow& row : mine) {
      const ProbeRow found = take_row(from);
      if (rank == 0) {
        row.histogram = {}, row.losses = {}, row.error = {}, row.batch_noise = 0.0, row.stagnation = {};
      }
      add(row, found);
    }
  }
  return mine;
}

}  // namespace mantissa
