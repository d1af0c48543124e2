// Settings of the configuration for gradients and weights on their way between ranks. Plain data.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa {

// Each rank keeps the optimizer state of its shard of every bucket, or (for comparison) every rank keeps all state.
enum class Sharding : uint8_t { kSharded, kReplicated };

// Sum of contributions: in fp32, or rounded to the wire dtype after every addition, as native 16-bit reductions do.
enum class Accumulation : uint8_t { kFp32, kWire };

// How a lane's gradient is rounded to the wire dtype: to nearest, ties to even, or up or down at random so that the
// mean is the value.
enum class SenderRounding : uint8_t { kNearest, kStochastic };

// The groups in which sums over ranks are made (exchange_groups.h). kAuto: hierarchical on several nodes of several
// ranks each, else direct.
enum class Exchange : uint8_t { kAuto, kDirect, kHierarchical, kHalving };

enum class Digests : uint8_t { kOff, kOn };  // whether digests watch over data (comm/corruption.h)

// log2 of the gradient prescale, a power of two of at most ranks * micro-batches. Backward passes scale the gradients
// of the global mean loss by it, to about the gradients of the mean over a micro-batch of a rank. So 16-bit gradients
// keep their magnitude for any number of ranks and micro-batches. Unscaling removes it exactly.
constexpr int gradient_prescale_log2(int64_t ranks, int64_t micro_batches) {
  return std::bit_width(static_cast<uint64_t>(ranks * micro_batches)) - 1;
}

struct ReducerConfig {
  DType wire = DType::kBF16;  // fp64 beside fp64 gradients; e4m3 and e5m2: codes with block scales
  SenderRounding rounding = SenderRounding::kNearest;
  uint64_t seed = 0;  // of stochastic rounding
  // Adds the rounding error of a lane's gradient to the gradient of its next step (wire_rounding.h).
  bool error_feedback = false;
  Accumulation accumulation = Accumulation::kFp32;
  Sharding sharding = Sharding::kSharded;
  // Contributions arrive 2^prescale_log2 times larger than their share of the mean over the global batch.
  int prescale_log2 = 0;
  Digests wire_digests = Digests::kOff;  // of contributions and sums between ranks

  // Whether contributions are rounded to the wire dtype. If not, they travel as they are.
  bool rounds() const { return size_bytes(wire) < size_bytes(DType::kF32); }
  bool keeps_residuals() const { return error_feedback && rounds(); }
  // Whether its sender must round a gradient: receivers that read it in place know neither its words, nor its blocks,
  // nor its residuals.
  bool rounds_at_sender() const {
    return is_coded(wire) || keeps_residuals() || (rounds() && rounding == SenderRounding::kStochastic);
  }
  // The dtype of rounded gradients that are not sent.
  DType rounded() const { return is_coded(wire) ? DType::kF32 : wire; }
};

// All-gather of updated weights: as stored, or as 8-bit codes (coded_gather.h).
enum class WeightGather : uint8_t { kWorking, kF8 };

}  // namespace mantissa
