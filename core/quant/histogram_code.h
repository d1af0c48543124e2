// Exponent histograms in few bytes: most of their bins are empty.
//
// A code is the amax (4 bytes, little-endian), then for each bin that is not empty, in ascending order, how many bins
// lie between it and the one before, and its count, both as LEB128: 7 bits a byte, the lowest first, the top bit set in
// all bytes but a number's last.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/quant/exponent_histogram.h"

namespace mantissa {

// Counts must not be negative.
std::vector<std::byte> encode_histogram(const ExponentHistogram& histogram);
// DataError for bytes that are no such code.
ExponentHistogram decode_histogram(std::span<const std::byte> code);

}  // namespace mantissa
