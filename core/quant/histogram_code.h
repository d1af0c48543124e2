// A compact encoding of exponent histograms, most of whose bins are empty.
//
// A code is the amax (4 bytes, little-endian) followed by two numbers for each nonempty bin in ascending order: how
// many bins lie between it and the previous one, and its count. Both are LEB128: 7 bits a byte, the lowest first, the
// top bit set in all bytes but a number's last.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/quant/exponent_histogram.h"

namespace mantissa {

// Counts must not be negative.
std::vector<std::byte> encode_histogram(const ExponentHistogram& histogram);
// Throws DataError if the bytes are not such a code.
ExponentHistogram decode_histogram(std::span<const std::byte> code);

}  // namespace mantissa
