// The optimizer state of a bucket: its dtypes by the settings, its tensors, and values from the host for it.
#pragma once

#include <map>

#include "comm/flat_buckets.h"
#include "core/optim/adamw.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {

// With 8-bit moments, parameters with fewer elements (biases, norms) keep fp32 moments: their bytes do not matter. So
// do embeddings of any size: their gradients differ most by row (Dettmers et al. 2021, "stable embedding layer").
constexpr int64_t kSmallestBlockwise = 4096;

// The alignment that BucketLayout must use for these settings: whole blocks for parameters with 8-bit moments.
BucketLayout::AlignmentOf state_alignment(const AdamWOptions& options);

struct StateFormat {
  bool has_master = true;  // otherwise the working weights are the state
  bool has_compensation = false;
  DType master = DType::kF32;              // of masters; fp64 beside fp64 weights, and so are then the moments
  DType m = DType::kF32, v = DType::kF32;  // u8: codes, with an fp32 absmax for each kDynamicBlock elements
};

// ConfigError for 16-bit working weights that need a master. ContractError unless the layout uses state_alignment().
StateFormat state_format(const BucketLayout::Bucket& bucket, const AdamWOptions& options);

// Views of the state of n elements.
struct StateTensors {
  Tensor master{};                // (n) fp32 or fp64: masters, or fp32 weights that are their own state
  Tensor weight{};                // (n) bf16: weights that are their own state; undefined if `master` is not
  Tensor compensation{};          // (n) bf16, or undefined
  Tensor m{}, v{};                // (n) fp64, fp32, bf16, or u8
  Tensor m_absmax{}, v_absmax{};  // (blocks) fp32, for u8

  // Elements [offset, offset + count); for codes, offset is a multiple of kDynamicBlock.
  StateTensors slice(int64_t offset, int64_t count) const;
};

// One moment of n elements: values (n), or codes (n) with an absmax for each kDynamicBlock of them. Empty: zeros.
struct MomentValues {
  std::span<const float> values{};
  std::span<const uint8_t> codes{};
  std::span<const float> absmax{};

  bool empty() const { return values.empty() && codes.empty(); }
  size_t size() const { return codes.empty() ? values.size() : codes.size(); }
};

// Masters and moments of n elements in fp64; empty if the values have another format.
struct StateDoubles {
  std::span<const double> weights{}, m{}, v{};

  bool empty() const { return weights.empty(); }
};

// Uploads elements [first, first + target's n) of `values` as masters, or as weights that are their own state, rounded
// to nearest. Compensations come from `compensation`; if it is empty, from rounding.
void upload_weights(std::span<const float> values, std::span<const float> compensation, int64_t first,
                    const StateTensors& target, Backend& backend, Stream& stream);

// Uploads elements [first, first + target's n) of fp64 values to fp64 state.
void upload_doubles(const StateDoubles& values, int64_t first, const StateTensors& target, Backend& backend,
                    Stream& stream);

// Uploads elements [first, first + n) of a moment of `map` to `target` (n): fp64, fp32, bf16 (rounded to nearest once;
// updates round stochastically from there), or u8 with `absmax`. u8 takes codes or nothing: see MomentBlocks.
void upload_moment(const MomentValues& values, int64_t first, DynamicMap map, const Tensor& target,
                   const Tensor& absmax, Backend& backend, Stream& stream);

// Codes (values.size()) and absmax (blocks) of values in whole blocks; the last one may be shorter.
void encode_blocks(DynamicMap map, std::span<const float> values, std::span<uint8_t> codes, std::span<float> absmax);

// Encodes one moment of the elements [0, n), n = codes.numel(), of a parameter part that begins with a block. Values
// arrive in pieces of any size. A block is encoded when all its values are there: codes do not depend on the pieces.
class MomentBlocks {
 public:
  // Adds elements from `first` on, each once in all. Writes codes (n) u8 and absmax (blocks) fp32 of complete blocks.
  void add(std::span<const float> values, int64_t first, DynamicMap map, const Tensor& codes, const Tensor& absmax,
           Backend& backend, Stream& stream);

 private:
  struct Partial {
    std::array<float, kDynamicBlock> values;
    int64_t count = 0;
  };
  std::map<int64_t, Partial> partial_;  // by number of the block
};

}  // namespace mantissa
