// Corruption: a finding of the checks for silent data corruption. Digests (core/kernels/reduction/digest.h) of the same
// data at two places or times must agree; a difference names rank and tensor, and 256 elements if one of them changed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/autograd/parameter.h"
#include "core/kernels/optimizer/records.h"

namespace mantissa {

enum class CorruptData : int32_t {
  // State of the optimizer, in the order of StateDigests::Part.
  kMaster,
  kWeight,
  kCompensation,
  kM,
  kV,
  kMAbsmax,
  kVAbsmax,
  kWorkingWeight,   // that passes read
  kSentGradient,    // on the way from `rank` to `receiver`
  kSummedGradient,  // likewise: a sum that its owner sends to replicas
  kGradient,        // of a pass that was run again
};

struct Corruption {
  CorruptData data = CorruptData::kMaster;
  int32_t parameter = -1;  // index in the ParameterSet
  int32_t rank = -1;       // -1: the copies of ranks differ, and the right copy is unknown
  int32_t receiver = -1;   // of data on its way
  // Elements of the parameter, at least one of them changed. For scales of codes: the elements of their blocks.
  int64_t begin = 0, count = 0;
  int64_t part = 0;     // the first element of the compared part, which holds them
  int32_t bit = -1;     // the changed bit, if only one bit changed
  uint32_t update = 0;  // the optimizer's update that read corrupted state; 0: no update
};

// The finding if the digests of elements [begin, begin + count) of a parameter differ.
Corruption corruption_of(CorruptData data, int parameter, int rank, int64_t begin, int64_t count,
                         const Digest& expected, const Digest& found);

// "rank 1 (node b): first moment of 'blocks.0.mlp.up.weight', elements [256, 512) (bit 30)". `hosts`: by rank, or
// empty.
std::string to_text(const Corruption& corruption, const ParameterSet& parameters,
                    std::span<const std::string> hosts = {});

// The findings of all ranks, in rank order: at most kMostFindings of each. The same on every rank. Collective; blocks.
constexpr size_t kMostFindings = 16;
std::vector<Corruption> gather_findings(Communicator& communicator, std::vector<Corruption> mine);

}  // namespace mantissa
