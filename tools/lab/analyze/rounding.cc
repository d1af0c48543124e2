#include "tools/lab/analyze/rounding.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/kernels/elementwise/args.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/scales.h"

namespace mantissa {
namespace {

using Values = std::vector<float>;

// Stored on the device as `dtype`, by its casts.
Rounding stored_as(DType dtype, Format format, Backend& device, Stream& stream) {
  return {.name = std::string(info(format).name),
          .format = format,
          .by = RoundedBy::kDevice,
          .round = [&device, &stream, dtype](const Values& values) {
            const Shape shape{static_cast<int64_t>(values.size())};
            const Tensor wide = device.make_tensor(DType::kF32, shape, "rounded values");
            const Tensor narrow = device.make_tensor(dtype, shape, "rounded values");
            device.upload(values.data(), wide, stream);
            device.run(CastArgs{.src = wide, .dst = narrow}, stream);
            device.run(CastArgs{.src = narrow, .dst = wide}, stream);
            Values rounded(values.size());
            device.download(wide, rounded.data(), stream);
            return rounded;
          }};
}

Rounding unscaled(Format format) {
  return {.name = std::string(info(format).name), .format = format, .round = [format](const Values& values) {
            Values rounded(values.size());
            std::transform(values.begin(), values.end(), rounded.begin(),
                           [format](float value) { return quantize(format, value, Saturation::kNo); });
            return rounded;
          }};
}

// The scale of a tensor of these values; 1 where the recipe has none.
float scale_of(TensorFormat format, const Values& values) {
  uint32_t amax = 0;
  for (const float value : values) amax = std::max(amax, magnitude_bits(value));
  if (format.scaling == Scaling::kTwoLevel) return two_level_tensor_scale(amax);
  if (format.scaling != Scaling::kCurrent) return 1.0f;
  return tensor_scale(amax, narrow_format(format.format).max, 0, 1.0f);
}

Rounding scaled(TensorFormat format, Backend& host) {
  const std::string name(mantissa::name(format.scaling));
  const bool is_format_known = format.scaling == Scaling::kMicro || format.scaling == Scaling::kTwoLevel;
  return {.name = is_format_known ? name : fmt::format("{} {}", info(format.format).name, name),
          .format = format.format,
          .scaling = format.scaling,
          .round = [format, &host](const Values& values) {
            const Shape shape{1, static_cast<int64_t>(values.size())};
            const float scale = scale_of(format, values);
            const bool has_scale = has_tensor_scale(format.scaling);
            const Tensor src = host.make_tensor(DType::kF32, shape, "rounded values");
            const Tensor dst = host.make_tensor(DType::kBF16, shape, "rounded values");
            const Tensor scales = has_scale ? host.make_tensor(DType::kF32, {1}, "scale") : Tensor();
            std::copy(values.begin(), values.end(), src.data<float>());
            if (has_scale) *scales.data<float>() = scale;
            host.run(QuantizeArgs{.src = src, .dst = dst, .format = format, .scale = scales}, *host.create_stream());
            Values rounded(values.size());
            const auto* stored = dst.data<BFloat16>();
            for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = to_float(stored[i]) / scale;
            return rounded;
          }};
}

}  // namespace

std::vector<Rounding> make_roundings(Backend& device, Stream& stream, Backend& host) {
  return {stored_as(DType::kF32, Format::kF32, device, stream),
          unscaled(Format::kTF32),
          stored_as(DType::kBF16, Format::kBF16, device, stream),
          stored_as(DType::kF16, Format::kF16, device, stream),
          unscaled(Format::kE4M3),
          unscaled(Format::kE5M2),
          unscaled(Format::kE2M1),
          scaled({Format::kE4M3, Scaling::kCurrent}, host),
          scaled({Format::kE5M2, Scaling::kCurrent}, host),
          scaled({Format::kE4M3, Scaling::kBlock}, host),
          scaled({Format::kE4M3, Scaling::kMicro}, host),
          scaled({Format::kE2M1, Scaling::kTwoLevel}, host)};
}

}  // namespace mantissa
