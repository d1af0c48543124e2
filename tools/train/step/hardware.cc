#include "tools/train/step/hardware.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "core/autograd/precision.h"
#include "core/base/check.h"
#include "core/cuda/device_models.h"
#include "tools/config/config_reader.h"

namespace mantissa {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
// Joules for moving a byte between memory and processor. O'Connor et al., "Fine-Grained DRAM: Energy-Efficient DRAM for
// Extreme Bandwidth Systems", MICRO 2017: HBM2 3.9 pJ a bit, GDDR5 14 pJ. Later generations, GDDR6 among them, take
// less: for them these are estimates on the high side.
constexpr double kHbm = 8 * 3.9e-12, kGddr = 8 * 14e-12;

using Peaks = std::array<double, std::size(kAllProductFormats)>;

// Tensor cores by the GPU's data sheet; fp32, fp64 and fp4 are not in that table.
Peaks nvidia_peaks(std::string_view driver_name, double fp32_teraflops, double fp64_teraflops,
                   double fp4_teraflops = 0.0) {
  const auto sheet = cuda::datasheet_peaks(driver_name);
  MANTISSA_CHECK(sheet.has_value(), "[hardware] there is no data sheet of '{}'", driver_name);
  return {fp32_teraflops * kTera, sheet->tf32,           sheet->half,           sheet->half,
          sheet->codes,           fp4_teraflops * kTera, fp64_teraflops * kTera};
}

// fp32, tf32, bf16, fp16, fp8, fp4, fp64; in TFLOP/s.
Peaks peaks(const Peaks& teraflops) {
  Peaks scaled = teraflops;
  for (double& flops : scaled) flops *= kTera;
  return scaled;
}

Fp8GemmSupport nvidia_fp8(int major, int minor) { return cublaslt_fp8_gemm_support(major, minor, 130000); }

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) text += static_cast<char>(std::tolower(c));
  }
  return text;
}

}  // namespace

// Makers give GPU links as the sum of both directions; the table has half of that.
//
// Idle power is nvidia-smi's value for a GPU that holds a CUDA context and has nothing to do (state P0). A context adds
// 26 to 50 W to an empty A100 or H100, however much memory it takes (Vadari, "The Model Parking Tax", arXiv 2605.23918,
// 2026). The table adds 26 W to some 60 W of an empty A100, and 50 W to some 70 W of an empty H100.
std::span<const Hardware> all_hardware() {
  constexpr std::string_view kContext =
      "nvidia-smi for an empty GPU, and the context's share of Vadari, arXiv 2605.23918";
  static const Hardware kTable[] = {
      // Name, title, peaks; memory bytes, memory bandwidth, link bandwidth, watts, idle watts, joules a byte, FP8
      // products; source; source of the idle power.
      {"t4", "NVIDIA T4", peaks({8.1, 0, 0, 65, 0, 0, 0}),  // link: PCIe 3.0 x16
       16 * kGiga, 320 * kGiga, 16 * kGiga, 70, 26, kGddr, nvidia_fp8(7, 5),
       "NVIDIA T4 Tensor Core GPU data sheet, 2019", "an estimate: what nvidia-smi shows in P0"},
      {"v100", "NVIDIA V100 SXM2 32 GB", peaks({15.7, 0, 0, 125, 0, 0, 7.8}), 32 * kGiga, 900 * kGiga, 150 * kGiga, 300,
       56, kHbm, nvidia_fp8(7, 0), "NVIDIA V100 Tensor Core GPU data sheet, 2020",
       "an estimate: what nvidia-smi shows in P0"},
      {"a100", "NVIDIA A100 SXM 80 GB", nvidia_peaks("NVIDIA A100-SXM4-80GB", 19.5, 19.5), 80 * kGiga, 2039 * kGiga,
       300 * kGiga, 400, 86, kHbm, nvidia_fp8(8, 0), "NVIDIA A100 80GB Tensor Core GPU data sheet, 2021", kContext},
      {"h100", "NVIDIA H100 SXM 80 GB", nvidia_peaks("NVIDIA H100 80GB HBM3", 66.9, 66.9), 80 * kGiga, 3352 * kGiga,
       450 * kGiga, 700, 120, kHbm, nvidia_fp8(9, 0), "NVIDIA H100 Tensor Core GPU Architecture (white paper), 2022",
       kContext},
      {"h200", "NVIDIA H200 SXM", nvidia_peaks("NVIDIA H200", 67, 67), 141 * kGiga, 4800 * kGiga, 450 * kGiga, 700, 130,
       kHbm, nvidia_fp8(9, 0), "NVIDIA H200 Tensor Core GPU data sheet, 2024",
       "an estimate: 80 W of an empty GPU, and an H100's 50 W for a context"},
      {"b200", "NVIDIA B200 (HGX)", nvidia_peaks("NVIDIA B200", 80, 40, 9000), 180 * kGiga, 8000 * kGiga, 900 * kGiga,
       1000, 194, kHbm, nvidia_fp8(10, 0),
       "NVIDIA Blackwell Architecture Technical Brief, 2024, and HGX B200 data sheet",
       "an estimate: 192 to 196 W in nvidia-smi listings of loaded, waiting GPUs, 2025"},
      {"tpu-v3", "Google TPU v3 (one chip)", peaks({0, 0, 123, 0, 0, 0, 0}),  // link: four of 656 Gbit/s
       32 * 1.073741824 * kGiga, 900 * kGiga, 4 * 82 * kGiga, 262, 123, kHbm, Fp8GemmSupport::kNone,
       "Google Cloud documentation, TPU v3 (most power measured); links: Jouppi et al., A Domain-Specific "
       "Supercomputer for Training Deep Neural Networks, CACM 2020",
       "Google Cloud documentation, TPU v3 (least power measured)"},
      {"gaudi2", "Intel Gaudi 2",
       peaks({0, 0, 432, 0, 865, 0, 0}),  // link: ports of 100 Gbit/s within a server of eight
       96 * kGiga, 2450 * kGiga, 21 * 12.5 * kGiga, 600, 100, kHbm, Fp8GemmSupport::kTensorScaled,
       "Habana Gaudi2 white paper, 2022; FLOP/s: Intel Gaudi 2 product brief, 2023",
       "an estimate: a sixth of its TDP, as of an H100"},
  };
  return kTable;
}

std::string hardware_names(std::optional<ProductFormat> format) {
  std::vector<std::string_view> names;
  for (const Hardware& hardware : all_hardware()) {
    if (!format || units_for(hardware, *format)) names.push_back(hardware.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

const Hardware& find_hardware(std::string_view name) {
  const auto distance = [wanted = plain(name)](const Hardware& hardware) {
    return edit_distance(wanted, plain(hardware.name));
  };
  const Hardware& nearest = *std::ranges::min_element(all_hardware(), {}, distance);
  const bool is_near = distance(nearest) <= nearest.name.size() / 2;
  require<ConfigError>(distance(nearest) == 0, "--hardware: expected one of {}, got '{}'{}", hardware_names(), name,
                       is_near ? fmt::format("; did you mean '{}'?", nearest.name) : "");
  return nearest;
}

std::optional<ProductUnits> units_for(const Hardware& hardware, ProductFormat wanted) {
  const auto on = [&](ProductFormat format, int products) -> std::optional<ProductUnits> {
    const double peak = hardware.peak(format);
    if (peak <= 0.0) return std::nullopt;
    return ProductUnits{.format = format, .products = products, .flops = peak / products};
  };
  if (const auto own = on(wanted, 1)) return own;
  if (wanted == ProductFormat::kF8 || wanted == ProductFormat::kF4 || wanted == ProductFormat::kF64) {
    return std::nullopt;
  }
  if (wanted != ProductFormat::kF32) return on(ProductFormat::kF32, 1);
  return on(ProductFormat::kBF16, bf16_products(Fp32Products::kBf16x6));
}

}  // namespace mantissa
