#include "comm/state_format.h"

#include "core/quant/dynamic_map.h"

namespace mantissa {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

int64_t blocks_of(int64_t numel) { return (numel + kDynamicBlock - 1) / kDynamicBlock; }

DType moment_dtype(MomentFormat format, bool blockwise) {
  switch (format) {
    case MomentFormat::kF32:
      return DType::kF32;
    case MomentFormat::kBF16:
    case MomentFormat::kBF16Stochastic:
      return DType::kBF16;
    case MomentFormat::kBlockwise8Bit:
      return blockwise ? DType::kU8 : DType::kF32;
  }
  return DType::kF32;
}

int64_t bytes_of_moment(DType dtype, int64_t numel) {
  return numel * size_bytes(dtype) + (dtype == DType::kU8 ? blocks_of(numel) * kFloatBytes : 0);
}

Tensor slice_of(const Tensor& tensor, int64_t offset, int64_t count) {
  return tensor.defined() ? tensor.slice(offset, count) : Tensor();
}

Tensor slice_of_blocks(const Tensor& absmax, int64_t offset, int64_t count) {
  if (!absmax.defined()) return {};
  MANTISSA_CHECK(offset % kDynamicBlock == 0, "[state_format] codes from element {}, which is in the middle of a block",
                 offset);
  return absmax.slice(offset / kDynamicBlock, blocks_of(count));
}

}  // namespace

BucketLayout::AlignmentOf state_alignment(const AdamWOptions& options) {
  if (!options.has_blocks()) return {};
  return [](const Parameter& parameter) {
    const bool blockwise = parameter.role != ParameterRole::kEmbedding && parameter.numel() >= kSmallestBlockwise;
    return blockwise ? kDynamicBlock : BucketLayout::kAlignmentElements;
  };
}

size_t StateFormat::master_bytes(int64_t numel) const {
  const int64_t each = has_master ? kFloatBytes : has_compensation ? size_bytes(DType::kBF16) : 0;
  return static_cast<size_t>(numel * each);
}

size_t StateFormat::moment_bytes(int64_t numel) const {
  return static_cast<size_t>(bytes_of_moment(m, numel) + bytes_of_moment(v, numel));
}

StateFormat state_format(const BucketLayout::Bucket& bucket, const AdamWOptions& options) {
  const bool blockwise = bucket.alignment == kDynamicBlock;
  MANTISSA_CHECK(!blockwise || options.has_blocks(),
                 "[state_format] the layout was made for moments in blocks, which these settings do not have");
  const bool has_master = options.master == MasterWeights::kF32;
  if (!has_master && bucket.dtype == DType::kF16) {
    throw ConfigError(
        "optimizer.master: only working weights in bf16 or fp32 can do without fp32 masters, and some are fp16; give "
        "optimizer.master=fp32, or let every linear layer compute in bf16 or fp32");
  }
  return {.has_master = has_master,
          .has_compensation = options.master == MasterWeights::kKahan && bucket.dtype == DType::kBF16,
          .m = moment_dtype(options.first_moment, blockwise),
          .v = moment_dtype(options.second_moment, blockwise)};
}

StateTensors StateTensors::slice(int64_t offset, int64_t count) const {
  return {.master = slice_of(master, offset, count),
          .weight = slice_of(weight, offset, count),
          .compensation = slice_of(compensation, offset, count),
          .m = slice_of(m, offset, count),
          .v = slice_of(v, offset, count),
          .m_absmax = slice_of_blocks(m_absmax, offset, count),
          .v_absmax = slice_of_blocks(v_absmax, offset, count)};
}

}  // namespace mantissa
