// A fingerprint of the working weights: equal on two ranks exactly when their weights are bit-identical (up to a 64-bit
// collision). Independent of buckets and ranks.
#pragma once

#include <cstdint>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"

namespace mantissa {

// XXH3-64 over the bytes of every parameter's weight, in order of registration. Blocks until done. Waits for weights
// that come from other ranks: collective if there may be some.
uint64_t hash_weights(const ParameterSet& parameters, Backend& backend, Stream& stream);

}  // namespace mantissa
