#include "tools/bench/gemm_rates.h"

#include <fmt/core.h>

#include "core/backend/device_rates.h"
#include "core/backend/registry.h"
#include "core/base/thread_team.h"
#include "core/cpu/fma_peak.h"

namespace mantissa {
namespace {

constexpr int64_t kSizes[] = {256, 512, 1024, 2048, 4096, 8192};
// The limit of the next size's estimated time: slow devices stop before products take minutes.
constexpr double kMaxSeconds = 1.0;

}  // namespace

std::string_view operand_name(DType dtype) { return dtype == DType::kU8 ? "e4m3" : name(dtype); }

GemmPeak gemm_peak(const DeviceChoice& device, DType dtype) {
  const BackendEntry& backend = find_backend(device.backend);
  if (backend.computes_on_host) {
    const cpu::FmaPeak peak = cpu::measure_fma_peak(dtype, threads());
    return {dtype, peak.flops, fmt::format("measured: {}, on registers, {} threads", peak.instruction, threads())};
  }
  const auto flops = backend.datasheet_flops(device.index, dtype, Fp32Math::kFull);
  return {dtype, flops, flops ? "data sheet" : "not known"};
}

std::vector<GemmRate> measure_gemm_rates(Backend& backend, Stream& stream, const GemmPeak& peak) {
  std::vector<GemmRate> rates;
  for (const int64_t aligned : kSizes) {
    const auto elements = static_cast<double>(aligned);
    if (!rates.empty() && 2.0 * elements * elements * elements > kMaxSeconds * rates.back().flops) break;
    for (const int64_t size : {aligned, aligned - 1}) {
      if (peak.dtype == DType::kU8 && size % kFp8GemmMultiple != 0) continue;
      GemmRate rate{peak.dtype, size, measure_product_flops(backend, stream, peak.dtype, {size, size, size}), {}};
      if (peak.flops) rate.share_of_peak = rate.flops / *peak.flops;
      rates.push_back(rate);
    }
  }
  return rates;
}

}  // namespace mantissa
