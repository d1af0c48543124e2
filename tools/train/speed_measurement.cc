#include "tools/train/speed_measurement.h"

#include <vector>

#include "comm/gpu_claim.h"
#include "core/backend/device_rates.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace mantissa {
namespace {

struct RankPeaks {
  double gemm = 0.0, datasheet = 0.0;  // FLOP/s; 0: not known
};

// What cannot be measured, for want of memory, is not known; it is no reason to end a training that fits.
double measured_flops(Session& session) {
  try {
    return measure_gemm_flops(*session.runtime.backend, *session.runtime.stream, session.config.precision.compute);
  } catch (const Error& error) {
    log_warn("the GEMM peak was not measured: {}", error.what());
    return 0.0;
  }
}

RankPeaks my_peaks(Session& session) {
  const BackendEntry& backend = find_backend(session.device.backend);
  const int index = session.device.index;
  session.communicator.barrier();  // so that ranks of one device measure what they leave each other
  return {.gemm = measured_flops(session), .datasheet = promised_flops(backend, index, session.config.precision)};
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

SpeedContext measure_speed_context(Session& session) {
  const Config& config = session.config;
  SpeedContext speed;
  speed.tokens_per_step = config.train.global_batch * config.model.context;
  speed.flops_per_step = training_flops_per_token(config.model) * static_cast<double>(speed.tokens_per_step);
  bool all_measured = true, all_known = true;
  for (const RankPeaks& peaks : all_gather_records(session.communicator, my_peaks(session))) {
    speed.gemm_peak_flops += peaks.gemm;
    speed.datasheet_flops += peaks.datasheet;
    all_measured &= peaks.gemm > 0.0;
    all_known &= peaks.datasheet > 0.0;
  }
  const BackendEntry& backend = find_backend(session.device.backend);
  const int index = session.device.index;
  const auto claims = all_gather_claims(session.communicator, {.node = this_node(),
                                                               .gpu = backend.device_identity(index),
                                                               .index = index,
                                                               .visible_gpus = backend.device_count()});
  if (!all_measured) speed.gemm_peak_flops = 0.0;
  if (!all_known || ranks_that_share(claims)) speed.datasheet_flops = 0.0;
  return speed;
}

}  // namespace mantissa
