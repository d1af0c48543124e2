#include "comm/optimizer_state.h"

#include "core/base/round_up.h"
#include "core/base/thread_team.h"
#include "core/quant/narrow_format.h"

namespace mantissa {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

int64_t blocks_of(int64_t numel) { return divide_up(numel, kDynamicBlock); }

DType moment_dtype(MomentFormat format, bool blockwise, DType master) {
  if (master == DType::kF64) return master;
  if (format == MomentFormat::kBlockwise8Bit) return blockwise ? DType::kU8 : DType::kF32;
  return format == MomentFormat::kF32 ? DType::kF32 : DType::kBF16;
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

void upload_floats(const float* from, const Tensor& target, Backend& backend, Stream& stream) {
  if (target.dtype() == DType::kF32) return backend.upload(from, target, stream);
  dispatch_with_fp64(target.dtype(), [&]<typename T>() {
    std::vector<T> converted;
    for (int64_t i = 0; i < target.numel(); ++i) converted.push_back(from_float<T>(from[i]));
    backend.upload(converted.data(), target, stream);
  });
}

void upload_zeros(const Tensor& target, Backend& backend, Stream& stream) {
  const std::vector<std::byte> zeros(target.size_bytes());
  backend.upload(zeros.data(), target, stream);
}

void upload_blocks(std::span<const float> values, int64_t first, DynamicMap map, const Tensor& codes,
                   const Tensor& absmax, Backend& backend, Stream& stream) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> host_codes(values.size());
  std::vector<float> host_absmax(static_cast<size_t>(blocks_of(count)));
  encode_blocks(map, values, host_codes, host_absmax);
  backend.upload(host_codes.data(), codes.slice(first, count), stream);
  backend.upload(host_absmax.data(), absmax.slice(first / kDynamicBlock, blocks_of(count)), stream);
}

}  // namespace

BucketLayout::AlignmentOf state_alignment(const AdamWOptions& options) {
  if (!options.has_blocks()) return {};
  return [](const Parameter& parameter) {
    const bool blockwise = parameter.role != ParameterRole::kEmbedding && parameter.numel() >= kSmallestBlockwise;
    return blockwise ? kDynamicBlock : BucketLayout::kAlignmentElements;
  };
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
  const DType master = wide_of(bucket.dtype);
  return {.has_master = has_master,
          .has_compensation = options.master == MasterWeights::kKahan && bucket.dtype == DType::kBF16,
          .master = master,
          .m = moment_dtype(options.first_moment, blockwise, master),
          .v = moment_dtype(options.second_moment, blockwise, master)};
}

void upload_doubles(const StateDoubles& values, int64_t first, const StateTensors& target, Backend& backend,
                    Stream& stream) {
  for (const auto& [from, to] :
       {std::pair(values.weights, target.master), {values.m, target.m}, {values.v, target.v}}) {
    MANTISSA_CHECK(to.dtype() == DType::kF64 && from.size() == values.weights.size(),
                   "[upload_doubles] expected {} values for fp64 state, got {} for {}", values.weights.size(),
                   from.size(), to.dtype());
    backend.upload(from.data() + first, to, stream);
  }
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

void upload_weights(std::span<const float> values, std::span<const float> compensation, int64_t first,
                    const StateTensors& target, Backend& backend, Stream& stream) {
  const float* const from = values.data() + first;
  if (target.master.defined()) {
    // A weight and its compensation are one value in two numbers.
    std::vector<float> sum(from, from + target.master.numel());
    for (size_t i = 0; i < sum.size() && !compensation.empty(); ++i) {
      sum[i] += compensation[static_cast<size_t>(first) + i];
    }
    upload_floats(sum.data(), target.master, backend, stream);
    return;
  }
  upload_floats(from, target.weight, backend, stream);
  if (!target.compensation.defined()) return;
  std::vector<float> lacking;
  for (int64_t i = 0; i < target.weight.numel(); ++i) {
    lacking.push_back(compensation.empty() ? from[i] - to_float(from_float<BFloat16>(from[i]))
                                           : compensation[static_cast<size_t>(first + i)]);
  }
  upload_floats(lacking.data(), target.compensation, backend, stream);
}

void upload_moment(const MomentValues& values, int64_t first, DynamicMap map, const Tensor& target,
                   const Tensor& absmax, Backend& backend, Stream& stream) {
  if (values.empty()) {
    upload_zeros(target, backend, stream);
    if (absmax.defined()) upload_zeros(absmax, backend, stream);
  } else if (target.dtype() == DType::kU8) {
    MANTISSA_CHECK(!values.codes.empty(), "[upload_moment] codes can be uploaded, not made");
    backend.upload(values.codes.data() + first, target, stream);
    backend.upload(values.absmax.data() + first / kDynamicBlock, absmax, stream);
  } else if (values.codes.empty()) {
    upload_floats(values.values.data() + first, target, backend, stream);
  } else {
    std::vector<float> decoded;
    for (int64_t i = first; i < first + target.numel(); ++i) {
      const float scale = values.absmax[static_cast<size_t>(i / kDynamicBlock)];
      decoded.push_back(dynamic_value(map, values.codes[static_cast<size_t>(i)]) * scale);
    }
    upload_floats(decoded.data(), target, backend, stream);
  }
}

void encode_blocks(DynamicMap map, std::span<const float> values, std::span<uint8_t> codes, std::span<float> absmax) {
  std::array<float, 255> thresholds{};  // the signed map has fewer
  for (int position = 0; position < last_position(map); ++position) {
    thresholds[static_cast<size_t>(position)] = dynamic_threshold(map, position);
  }
  parallel_for(static_cast<int64_t>(absmax.size()), [&](int64_t block) {
    const auto begin = static_cast<size_t>(block * kDynamicBlock);
    const size_t end = std::min(begin + static_cast<size_t>(kDynamicBlock), values.size());
    uint32_t largest = 0;  // a NaN is above Inf
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, magnitude_bits(values[i]));
    const float scale = absmax[static_cast<size_t>(block)] = std::bit_cast<float>(largest);
    for (size_t i = begin; i < end; ++i) codes[i] = encode_dynamic(map, values[i], scale, thresholds.data());
  });
}

void MomentBlocks::add(std::span<const float> values, int64_t first, DynamicMap map, const Tensor& codes,
                       const Tensor& absmax, Backend& backend, Stream& stream) {
  const int64_t last = first + static_cast<int64_t>(values.size()), numel = codes.numel();
  MANTISSA_CHECK(first >= 0 && last <= numel, "[moment_blocks] elements [{}, {}) of {}", first, last, numel);
  const auto part = [&](int64_t begin, int64_t end) {
    return values.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(end - begin));
  };
  int64_t whole_begin = -1, whole_end = -1;
  for (int64_t block = first / kDynamicBlock; block * kDynamicBlock < last; ++block) {
    const int64_t block_begin = block * kDynamicBlock, block_end = std::min(block_begin + kDynamicBlock, numel);
    const int64_t begin = std::max(first, block_begin), end = std::min(last, block_end);
    if (begin == block_begin && end == block_end) {
      if (whole_begin < 0) whole_begin = begin;
      whole_end = end;
      continue;
    }
    Partial& partial = partial_[block];
    const std::span<const float> mine = part(begin, end);
    std::copy(mine.begin(), mine.end(), partial.values.begin() + (begin - block_begin));
    partial.count += end - begin;
    if (partial.count < block_end - block_begin) continue;
    upload_blocks(std::span(partial.values).first(static_cast<size_t>(block_end - block_begin)), block_begin, map,
                  codes, absmax, backend, stream);
    partial_.erase(block);
  }
  if (whole_begin >= 0) upload_blocks(part(whole_begin, whole_end), whole_begin, map, codes, absmax, backend, stream);
}

}  // namespace mantissa
