#include "tools/bench/product_rates.h"

#include <cstdio>

#include "core/backend/registry.h"
#include "tools/bench/gemm_rates.h"

namespace mantissa {

void print_product_rates(const Config& config) {
  const DeviceChoice choice = choose_device(config.device, 0);
  const std::unique_ptr<Backend> backend = create_backend(choice.backend, choice.index);
  const std::unique_ptr<Stream> stream = backend->create_stream();
  std::vector<DType> dtypes{DType::kBF16};
  if (backend->fp8_gemm_support() != Fp8GemmSupport::kNone) dtypes.push_back(DType::kU8);
  for (const DType dtype : dtypes) {
    std::string text;
    for (const GemmRate& rate : measure_gemm_rates(*backend, *stream, gemm_peak(choice, dtype))) {
      text += fmt::format(" {} {:.5g} {:.5g}", rate.size, rate.flops, rate.share_of_peak.value_or(0.0));
    }
    std::printf("products_%s:%s\n", std::string(operand_name(dtype)).c_str(), text.c_str());
  }
}

}  // namespace mantissa
