#include "tools/train/step/speed_measurement.h"

#include <algorithm>

#include "core/backend/device_rates.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/cpu/fma_peak.h"

namespace mantissa {
namespace {

struct RankPeaks {
  double gemm = 0.0, datasheet = 0.0;  // FLOP/s; 0: not known
};

// A peak that cannot be measured, for want of memory, is not known: no reason to end a training that fits.
double measured_flops(DType compute, const BackendEntry& backend, ModelRuntime& runtime) {
  try {
    const double products = measure_gemm_flops(*runtime.backend, *runtime.stream, compute);
    if (!backend.computes_on_host) return products;
    return std::max(products, cpu::measure_fma_peak(compute, threads()).flops);
  } catch (const Error& error) {
    log_warn("the peak was not measured: {}", error.what());
    return 0.0;
  }
}

}  // namespace

double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision) {
  const auto promised = [&](DType dtype, Fp32Math math) {
    return backend.datasheet_flops(index, dtype, math).value_or(0.0);
  };
  const Fp32Products products = precision.fp32_products;
  if (precision.compute == DType::kF32 && bf16_products(products) > 0) {
    return promised(DType::kBF16, Fp32Math::kFull) / bf16_products(products);
  }
  return promised(precision.compute, products == Fp32Products::kTf32 ? Fp32Math::kTf32 : Fp32Math::kFull);
}

SpeedContext measure_speed_context(const Config& config, const DeviceChoice& device, ModelRuntime& runtime,
                                   Communicator& communicator) {
  const int64_t tokens = config.train.global_batch * config.model.context;
  SpeedContext speed{.tokens_per_step = tokens,
                     .flops_per_step = training_flops_per_token(config.model) * static_cast<double>(tokens)};
  const BackendEntry& backend = find_backend(device.backend);
  communicator.barrier();  // so that ranks of one device measure what they leave each other
  const RankPeaks mine{
      .gemm = config.train.measure_peak ? measured_flops(config.precision.compute, backend, runtime) : 0.0,
      .datasheet = promised_flops(backend, device.index, config.precision)};
  bool all_measured = true, all_known = true;
  for (const RankPeaks& peaks : all_gather_records(communicator, mine)) {
    speed.gemm_peak_flops += peaks.gemm;
    speed.datasheet_flops += peaks.datasheet;
    all_measured &= peaks.gemm > 0.0;
    all_known &= peaks.datasheet > 0.0;
  }
  const auto claims = all_gather_claims(communicator, claim_of(device));
  if (!all_measured) speed.gemm_peak_flops = 0.0;
  if (!all_known || ranks_that_share(claims)) speed.datasheet_flops = 0.0;
  return speed;
}

}  // namespace mantissa
