// The real cuDNN, without a GPU: whether its engines accept our graphs on a described device. Only a GPU (tests/gpu)
// can show that their results are right.
#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/kernels/attention/graph_cudnn.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using testing::error_of;

// The device properties that cuDNN 9 reads, with numbers of NVIDIA's H100 and A100.
std::string device_properties_json(int compute_capability, int multiprocessors, int shared_bytes, int64_t l2_bytes) {
  return fmt::format(
      R"({{"deviceVer": {}, "multiProcessorCount": {}, "maxSharedMemoryPerBlockOptin": {}, "l2CacheSize": {},
      "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
      "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
      "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
      "deviceName": "described", "driverVer": 13000, "cudaDeviceId": 0, "totalGlobalMem": 84929347584,
      "isTccDriver": 0, "pciDeviceId": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000,
      "memClockRateKHz": 2619000}})",
      compute_capability, multiprocessors, shared_bytes, l2_bytes);
}

// Engines need a driver before they look at a graph. Without one, load the toolkit's stub under the driver's name; the
// stub fails in every call.
bool open_driver() {
  std::vector<std::string> paths = {"libcuda.so.1"};
  for (const char* root :
       std::initializer_list<const char*>{std::getenv("CUDA_HOME"), std::getenv("CUDA_PATH"), "/usr/local/cuda"}) {
    for (const char* folder : {"lib64", "lib"}) {
      if (root != nullptr) paths.push_back(fmt::format("{}/{}/stubs/libcuda.so", root, folder));
    }
  }
  return std::any_of(paths.begin(), paths.end(),
                     [](const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr; });
}

class CudnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = error_of([] { cudnn(); });
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!open_driver()) GTEST_SKIP() << "there is neither a driver nor the toolkit's stub of one";
  }

  static CudnnDescriptor describe_device(const std::string& json) {
    CudnnDescriptor properties(cudnn(), CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::span<const char>(json));
    properties.finalize();
    return properties;
  }
  static CudnnDescriptor h100() { return describe_device(device_properties_json(900, 132, 232448, 52428800)); }
  static CudnnDescriptor a100() { return describe_device(device_properties_json(800, 108, 166912, 41943040)); }

  // Empty if an engine accepts the graph, else the reason why none does.
  static std::string refusal(const CudnnGraph& graph, const CudnnDescriptor& device) {
    return error_of([&] {
      const CudnnDescriptor finished = graph.finish(nullptr);
      EXPECT_FALSE(engine_configurations(cudnn(), {.properties = &device}, finished).empty());
    });
  }
  static CudnnGraph graph_of(const AttentionKey& key) {
    return key.pass == AttentionPass::kForward ? attention_forward_graph(cudnn(), key)
                                               : attention_backward_graph(cudnn(), key);
  }
};

AttentionShape geometry(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t dim, Mask mask) {
  return {.batch = batch,
          .sequence_length = length,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = dim,
          .scale = 1.0f,
          .mask = mask};
}

constexpr AttentionPass kPasses[] = {AttentionPass::kForward, AttentionPass::kBackward,
                                     AttentionPass::kReproducibleBackward};

TEST_F(CudnnAttention, EnginesTakeTheGraphsOfBothPasses) {
  for (const CudnnDescriptor& device : {h100(), a100()}) {
    for (const auto& [length, heads, kv_heads, dim] : std::initializer_list<std::array<int64_t, 4>>{
             {1024, 12, 12, 64}, {2048, 32, 8, 128}, {130, 4, 1, 64}, {77, 3, 3, 24}, {2, 1, 1, 8}}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
          for (const AttentionPass pass : kPasses) {
            SCOPED_TRACE(::testing::Message() << "T=" << length << " H=" << heads << " KV=" << kv_heads << " D=" << dim
                                              << " pass " << static_cast<int>(pass));
            const AttentionKey key{pass, dtype, geometry(2, length, heads, kv_heads, dim, mask)};
            EXPECT_EQ(refusal(graph_of(key), device), "");
          }
        }
      }
    }
  }
}

TEST_F(CudnnAttention, EnginesRefuseOtherDevicesAndShapes) {
  const CudnnDescriptor v100 = describe_device(device_properties_json(700, 80, 98304, 6291456));
  for (const AttentionPass pass : kPasses) {
    const AttentionKey key{pass, DType::kF16, geometry(2, 128, 2, 2, 64, Mask::kCausal)};
    EXPECT_NE(refusal(graph_of(key), v100).find("[cudnn] "), std::string::npos);
  }
  const CudnnDescriptor device = h100();
  for (const AttentionPass pass : {AttentionPass::kBackward, AttentionPass::kReproducibleBackward}) {
    const AttentionKey too_wide{pass, DType::kBF16, geometry(2, 128, 2, 2, 1024, Mask::kCausal)};
    EXPECT_NE(refusal(graph_of(too_wide), device).find("[cudnn] "), std::string::npos);
  }
}

TEST_F(CudnnAttention, HasEverySymbol) {
  EXPECT_EQ(cudnn().version() / 10000, static_cast<size_t>(CUDNN_MAJOR));
  // Every member is a function address, so none is missing.
  const auto* addresses = reinterpret_cast<void* const*>(&cudnn());
  for (size_t i = 0; i < sizeof(Cudnn) / sizeof(void*); ++i) EXPECT_NE(addresses[i], nullptr) << i;
}

TEST_F(CudnnAttention, ErrorsCarryTheLibrarysReason) {
  const std::string message = error_of([] { describe_device("{}"); });
  EXPECT_NE(message.find("[cudnn] cudnnBackendFinalize failed with CUDNN_STATUS_BAD_PARAM"), std::string::npos)
      << message;
  EXPECT_NE(message.find("HasMember"), std::string::npos) << message;
}

}  // namespace
}  // namespace mantissa::cuda
