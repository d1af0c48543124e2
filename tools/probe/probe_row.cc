#include "tools/probe/probe_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "comm/communicator.h"

namespace mantissa {
namespace {

// Adds the members of a record of counts, all int64_t.
template <typename Counts>
void add_counts(Counts& counts, const Counts& other) {
  using Array = std::array<int64_t, sizeof(Counts) / sizeof(int64_t)>;
  auto sum = std::bit_cast<Array>(counts);
  const auto more = std::bit_cast<Array>(other);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  counts = std::bit_cast<Counts>(sum);
}

// A row without its names and its histogram.
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

// Removes the next row from the output of encode().
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

struct Size {
  uint64_t rows, bytes;
};

}  // namespace

void add(ProbeRow& row, const ProbeRow& other) {
  for (int bin = 0; bin < kHistogramBins; ++bin) row.histogram.counts[bin] += other.histogram.counts[bin];
  row.histogram.amax = std::max(row.histogram.amax, other.histogram.amax);
  add_counts(row.losses, other.losses);
  row.error += other.error;
  row.batch_noise += other.batch_noise;
  add_counts(row.stagnation, other.stagnation);
}

std::vector<ProbeRow> sum_over_ranks(Communicator& communicator, std::vector<ProbeRow> mine) {
  if (communicator.size() == 1) return mine;
  std::vector<std::byte> bytes = encode(mine);
  const auto sizes = all_gather_records(communicator, Size{mine.size(), bytes.size()});
  size_t longest = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    MANTISSA_CHECK(sizes[rank].rows == mine.size(), "[probe_row] rank {} has {} rows, this rank has {}", rank,
                   sizes[rank].rows, mine.size());
    longest = std::max<size_t>(longest, sizes[rank].bytes);
  }
  bytes.resize(longest);
  const auto all = communicator.all_gather_bytes(bytes);
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    auto from = std::span(all).subspan(rank * longest, sizes[rank].bytes);
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
