// Reproducible test data, the same on every platform.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/tensor/philox.h"

namespace mantissa::reference {

// n values, uniform in [low, high), a function of the seed alone.
inline std::vector<double> random_values(int64_t n, uint64_t seed, double low = -1.0, double high = 1.0) {
  std::vector<double> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0});
    values[i] = low + (high - low) * (static_cast<double>(words[0]) + 0.5) * 0x1p-32;
  }
  return values;
}

// n integers in [0, limit).
inline std::vector<int32_t> random_integers(int64_t n, uint64_t seed, int32_t limit) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 1, 0});
    values[i] = static_cast<int32_t>(words[0] % static_cast<uint32_t>(limit));
  }
  return values;
}

// Starts of documents (core/kernels/documents.h) of `length` tokens on average, at most 3 / 2 of that.
inline std::vector<int32_t> random_starts(int64_t batch, int64_t sequence_length, int32_t length) {
  std::vector<int32_t> starts;
  const std::vector<int32_t> lengths = random_integers(batch * sequence_length, 17, length);
  for (size_t document = 0; static_cast<int64_t>(starts.size()) < batch * sequence_length; ++document) {
    const auto start = static_cast<int32_t>(static_cast<int64_t>(starts.size()) % sequence_length);
    const int64_t end = std::min(sequence_length, start + int64_t{length} / 2 + 1 + lengths[document]);
    starts.insert(starts.end(), static_cast<size_t>(end - start), start);
  }
  return starts;
}

}  // namespace mantissa::reference
