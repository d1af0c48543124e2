#include "comm/state_upload.h"

#include <vector>

namespace mantissa {
namespace {

void upload_floats(const float* from, const Tensor& target, Backend& backend, Stream& stream) {
  if (target.dtype() == DType::kF32) {
    backend.upload(from, target, stream);
    return;
  }
  std::vector<BFloat16> rounded;
  for (int64_t i = 0; i < target.numel(); ++i) rounded.push_back(from_float<BFloat16>(from[i]));
  backend.upload(rounded.data(), target, stream);
}

void upload_zeros(const Tensor& target, Backend& backend, Stream& stream) {
  const std::vector<std::byte> zeros(target.size_bytes());
  backend.upload(zeros.data(), target, stream);
}

std::vector<float> decoded(const MomentValues& values, int64_t first, int64_t count, DynamicMap map) {
  std::vector<float> decoded;
  for (int64_t i = first; i < first + count; ++i) {
    const float absmax = values.absmax[static_cast<size_t>(i / kDynamicBlock)];
    decoded.push_back(dynamic_value(map, values.codes[static_cast<size_t>(i)]) * absmax);
  }
  return decoded;
}

}  // namespace

void upload_weights(std::span<const float> values, std::span<const float> compensation, int64_t first,
                    const StateTensors& target, Backend& backend, Stream& stream) {
  const float* const from = values.data() + first;
  if (target.master.defined()) {
    // A weight and its compensation are one value in two numbers.
    std::vector<float> sum(from, from + target.master.numel());
    for (size_t i = 0; i < sum.size() && !compensation.empty(); ++i)
      sum[i] += compensation[static_cast<size_t>(first) + i];
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
    return;
  }
  if (target.dtype() != DType::kU8) {
    const float* const from = values.codes.empty() ? values.values.data() + first : nullptr;
    const std::vector<float> of_codes =
        from == nullptr ? decoded(values, first, target.numel(), map) : std::vector<float>();
    upload_floats(from == nullptr ? of_codes.data() : from, target, backend, stream);
    return;
  }
  MANTISSA_CHECK(!values.codes.empty(), "[upload_moment] codes can be uploaded, not made");
  backend.upload(values.codes.data() + first, target, stream);
  backend.upload(values.absmax.data() + first / kDynamicBlock, absmax, stream);
}

}  // namespace mantissa
