// Scalar reference of dropout, for double and std::complex<double>, with the scalar Philox.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "core/tensor/philox.h"

namespace mantissa::reference {

struct DropoutKey {
  double probability;
  uint64_t seed;
  uint32_t step, site, first_sample;
  size_t elements_per_sample;
};

inline bool dropout_keeps(const DropoutKey& key, size_t index) {
  const uint32_t sample = key.first_sample + static_cast<uint32_t>(index / key.elements_per_sample);
  const uint32_t element = static_cast<uint32_t>(index % key.elements_per_sample);
  const uint32_t word = philox(key.seed, {element / 4, key.site, sample, key.step})[element % 4];
  return static_cast<double>(word) >= std::nearbyint(key.probability * 0x1p32);
}

template <typename T>
std::vector<T> dropout_forward(const std::vector<T>& x, const DropoutKey& key) {
  std::vector<T> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = dropout_keeps(key, i) ? x[i] / (1.0 - key.probability) : T(0);
  return y;
}

// Dropout is linear and diagonal, so backward is the same map.
template <typename T>
std::vector<T> dropout_backward(const std::vector<T>& dy, const DropoutKey& key) {
  return dropout_forward(dy, key);
}

}  // namespace mantissa::reference
