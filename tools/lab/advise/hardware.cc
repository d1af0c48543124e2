#include "tools/lab/advise/hardware.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "core/autograd/linear_formats.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/cuda/device_models.h"
#include "core/io/config_reader.h"

namespace mantissa {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
constexpr size_t kCublasLt13 = 130000;

using Peaks = std::array<double, std::size(kAllProductFormats)>;

// Tensor cores as the GPU's data sheet has them, and fp32 and fp4, which that table is not about.
Peaks nvidia_peaks(std::string_view driver_name, double fp32_teraflops, double fp4_teraflops = 0.0) {
  const auto sheet = cuda::datasheet_peaks(driver_name);
  MANTISSA_CHECK(sheet.has_value(), "[hardware] there is no data sheet of '{}'", driver_name);
  return {fp32_teraflops * kTera, sheet->tf32, sheet->half, sheet->half, sheet->codes, fp4_teraflops * kTera};
}

// fp32, tf32, bf16, fp16, fp8, fp4; in TFLOP/s.
Peaks peaks(const Peaks& teraflops) {
  Peaks scaled = teraflops;
  for (double& flops : scaled) flops *= kTera;
  return scaled;
}

// Links of GPUs are given as the sum of both directions; here stands half of that.
const std::vector<Hardware>& table() {
  static const std::vector<Hardware> kTable = {
      {.name = "t4",
       .title = "NVIDIA T4",
       .flops = peaks({8.1, 0, 0, 65, 0, 0}),
       .memory_bytes = 16 * kGiga,
       .memory_bandwidth = 320 * kGiga,
       .link_bandwidth = 16 * kGiga,  // PCIe 3.0 x16
       .watts = 70,
       .joules_per_byte = kGddrJoulesPerByte,
       .fp8_gemm_support = cublaslt_fp8_gemm_support(7, 5, kCublasLt13),
       .source = "NVIDIA T4 Tensor Core GPU data sheet, 2019"},
      {.name = "v100",
       .title = "NVIDIA V100 SXM2 32 GB",
       .flops = peaks({15.7, 0, 0, 125, 0, 0}),
       .memory_bytes = 32 * kGiga,
       .memory_bandwidth = 900 * kGiga,
       .link_bandwidth = 150 * kGiga,
       .watts = 300,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = cublaslt_fp8_gemm_support(7, 0, kCublasLt13),
       .source = "NVIDIA V100 Tensor Core GPU data sheet, 2020"},
      {.name = "a100",
       .title = "NVIDIA A100 SXM 80 GB",
       .flops = nvidia_peaks("NVIDIA A100-SXM4-80GB", 19.5),
       .memory_bytes = 80 * kGiga,
       .memory_bandwidth = 2039 * kGiga,
       .link_bandwidth = 300 * kGiga,
       .watts = 400,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = cublaslt_fp8_gemm_support(8, 0, kCublasLt13),
       .source = "NVIDIA A100 80GB Tensor Core GPU data sheet, 2021"},
      {.name = "h100",
       .title = "NVIDIA H100 SXM 80 GB",
       .flops = nvidia_peaks("NVIDIA H100 80GB HBM3", 66.9),
       .memory_bytes = 80 * kGiga,
       .memory_bandwidth = 3352 * kGiga,
       .link_bandwidth = 450 * kGiga,
       .watts = 700,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = cublaslt_fp8_gemm_support(9, 0, kCublasLt13),
       .source = "NVIDIA H100 Tensor Core GPU Architecture (white paper), 2022"},
      {.name = "h200",
       .title = "NVIDIA H200 SXM",
       .flops = nvidia_peaks("NVIDIA H200", 67),
       .memory_bytes = 141 * kGiga,
       .memory_bandwidth = 4800 * kGiga,
       .link_bandwidth = 450 * kGiga,
       .watts = 700,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = cublaslt_fp8_gemm_support(9, 0, kCublasLt13),
       .source = "NVIDIA H200 Tensor Core GPU data sheet, 2024"},
      {.name = "b200",
       .title = "NVIDIA B200 (HGX)",
       .flops = nvidia_peaks("NVIDIA B200", 80, 9000),
       .memory_bytes = 180 * kGiga,
       .memory_bandwidth = 8000 * kGiga,
       .link_bandwidth = 900 * kGiga,
       .watts = 1000,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = cublaslt_fp8_gemm_support(10, 0, kCublasLt13),
       .source = "NVIDIA Blackwell Architecture Technical Brief, 2024, and HGX B200 data sheet"},
      {.name = "tpu-v3",
       .title = "Google TPU v3 (one chip)",
       .flops = peaks({0, 0, 123, 0, 0, 0}),
       .memory_bytes = 32 * 1.073741824 * kGiga,
       .memory_bandwidth = 900 * kGiga,
       .link_bandwidth = 4 * 82 * kGiga,  // four links of 656 Gbit/s
       .watts = 262,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = Fp8GemmSupport::kNone,
       .source = "Google Cloud documentation, TPU v3 (most power measured); links: Jouppi et al., A Domain-Specific "
                 "Supercomputer for Training Deep Neural Networks, CACM 2020"},
      {.name = "gaudi2",
       .title = "Intel Gaudi 2",
       .flops = peaks({0, 0, 432, 0, 865, 0}),
       .memory_bytes = 96 * kGiga,
       .memory_bandwidth = 2450 * kGiga,
       .link_bandwidth = 21 * 12.5 * kGiga,  // ports of 100 Gbit/s within a server of eight
       .watts = 600,
       .joules_per_byte = kHbmJoulesPerByte,
       .fp8_gemm_support = Fp8GemmSupport::kTensorScaled,
       .source = "Habana Gaudi2 white paper, 2022; FLOP/s: Intel Gaudi 2 product brief, 2023"},
  };
  return kTable;
}

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) text += static_cast<char>(std::tolower(c));
  }
  return text;
}

}  // namespace

std::span<const Hardware> all_hardware() { return table(); }

const Hardware& find_hardware(std::string_view name) {
  const std::string wanted = plain(name);
  const Hardware* nearest = nullptr;
  size_t least = 0;
  std::string known;
  for (const Hardware& hardware : table()) {
    const size_t distance = edit_distance(wanted, plain(hardware.name));
    if (distance == 0) return hardware;
    if (nearest == nullptr || distance < least) {
      nearest = &hardware;
      least = distance;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", hardware.name);
  }
  throw ConfigError(
      fmt::format("--hardware: expected one of {}, got '{}'; did you mean '{}'?", known, name, nearest->name));
}

std::optional<ProductUnits> units_for(const Hardware& hardware, ProductFormat wanted) {
  const auto on = [&](ProductFormat format, int products) -> std::optional<ProductUnits> {
    const double peak = hardware.peak(format);
    if (peak <= 0.0) return std::nullopt;
    return ProductUnits{.format = format, .products = products, .flops = peak / products};
  };
  if (const auto own = on(wanted, 1)) return own;
  switch (wanted) {
    case ProductFormat::kTf32:
    case ProductFormat::kBF16:
    case ProductFormat::kF16:
      return on(ProductFormat::kF32, 1);
    case ProductFormat::kF32:
      return on(ProductFormat::kBF16, bf16_products(Fp32Products::kBf16x6));
    case ProductFormat::kF8:
    case ProductFormat::kF4:
      break;
  }
  return std::nullopt;
}

}  // namespace mantissa
