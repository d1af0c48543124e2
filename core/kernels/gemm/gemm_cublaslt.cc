// Matrix multiplication on a GPU by cuBLASLt: run(GemmArgs), and descriptions for the log.
#include <fmt/core.h>

#include <map>
#include <memory>
#include <mutex>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/gemm/choice_cublaslt.h"
#include "core/kernels/gemm/gemm_cuda.h"

namespace mantissa::cuda {
namespace {

std::string cache_path(const DeviceProperties& properties) {
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  return folder + "/" +
         cache_file_name(
             {properties.name, properties.major, properties.minor, properties.multiprocessors, cublaslt().version()});
}

// Measurements by the authors of llm.c and SGLang: the library's products with gelu are faster than separate kernels on
// Hopper and data-centre Blackwell, and slower on Ada and desktop Blackwell.
GeluFusion gelu_fusion(const DeviceProperties& properties) {
  return properties.major == 9 || properties.major == 10 ? GeluFusion::kYes : GeluFusion::kNo;
}

GemmDevice& device_of(const CudaStream& stream) {
  // Never destroyed: when the program ends, the driver that the library uses may be gone first.
  static auto& devices = *new std::map<int, std::unique_ptr<GemmDevice>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::unique_ptr<GemmDevice>& device = devices[stream.device_index()];
  if (device == nullptr) {
    set_device(stream.device_index());
    const DeviceProperties properties = device_properties(stream.device_index());
    device = std::make_unique<GemmDevice>(cublaslt(), cache_path(properties), gelu_fusion(properties));
  }
  return *device;
}

}  // namespace

void run(const GemmArgs& args, CudaStream& stream) { multiply(device_of(stream), args, stream); }

std::string gemm_unusable_reason() try {
  cublaslt();
  return "";
} catch (const Error& error) {
  return error.what();
}

std::string describe_gemm() {
  const size_t version = cublaslt().version();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Fp8GemmSupport fp8_gemm_support(const DeviceProperties& device) {
  return cublaslt_fp8_gemm_support(device.major, device.minor, cublaslt().version());
}

std::string describe_fp8_gemm_support(const DeviceProperties& device) {
  if (fp8_gemm_support(device) == Fp8GemmSupport::kNone) {
    return fmt::format("compute capability {}.{} has no FP8 units; 8.9 and newer have them", device.major,
                       device.minor);
  }
  return fmt::format("{}, compute capability {}.{}", describe_gemm(), device.major, device.minor);
}

}  // namespace mantissa::cuda
