// The CPU and the emulated GPU update every state bit for bit alike. This needs a CPU of 2013 or later, whose
// instruction sets fuse multiply-adds as the GPU does.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/cuda/device_memory.h"
#include "core/cuda/stream.h"
#include "core/kernels/optimizer/args.h"
#include "tests/core/tensor/host_storage.h"
#include "tests/reference/random_values.h"

namespace mantissa {
namespace {

using reference::random_values;

constexpr int64_t kSize = 3000, kBlocks = 12;
constexpr UpdateControl kControl{
    .gradient_multiplier = 0.37f, .learning_rate = 3e-3f, .bias_correction1 = 0.271f, .bias_correction2 = 0.002997f};

enum class Weights : uint8_t { kMaster, kStochastic, kCompensated };

struct Format {
  DType m, v;
  Weights weights;
};

using Kernel = std::function<void(const AdamWArgs&)>;

Tensor make(DType dtype, int64_t numel) {
  const auto bytes = static_cast<size_t>(numel * size_bytes(dtype));
  const auto storage = testing::host_storage(bytes);
  std::fill_n(storage->data(), bytes, std::byte{0});
  return Tensor(storage, dtype, {numel});
}

// State of one device, from zero moments and random weights. An emulated GPU uses host memory.
class State {
 public:
  State(Kernel kernel, const Format& format) : kernel_(std::move(kernel)) {
    args_.weight_decay = 0.1f;
    args_.key = 11;
    args_.moment_key = 12;
    args_.parameter = 3;
    args_.gradient = make(DType::kF32, kSize);
    args_.m = make(format.m, kSize);
    args_.v = make(format.v, kSize);
    if (format.m == DType::kU8) args_.m_absmax = make(DType::kF32, kBlocks);
    if (format.v == DType::kU8) args_.v_absmax = make(DType::kF32, kBlocks);
    args_.weight = make(DType::kBF16, kSize);
    args_.rounding = format.weights == Weights::kCompensated ? WeightRounding::kNearest : WeightRounding::kStochastic;
    if (format.weights == Weights::kMaster) args_.master = make(DType::kF32, kSize);
    if (format.weights == Weights::kCompensated) args_.compensation = make(DType::kBF16, kSize);
    const auto values = random_values(kSize, 2);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (args_.master.defined()) {
        args_.master.data<float>()[i] = value;
      } else {
        args_.weight.data<BFloat16>()[i] = from_float<BFloat16>(value);
      }
    }
  }

  void update(uint32_t number) {
    const auto gradient = random_values(kSize, 100 + number);
    for (size_t i = 0; i < gradient.size(); ++i) {
      args_.gradient.data<float>()[i] = static_cast<float>(gradient[i] * (i % 7 == 0 ? 1e-4 : 1.0));
    }
    UpdateControl control = kControl;
    control.update = number;
    args_.control = make(DType::kU8, sizeof(control));
    std::memcpy(args_.control.raw(), &control, sizeof(control));
    kernel_(args_);
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const Tensor& tensor :
         {args_.master, args_.weight, args_.compensation, args_.m, args_.m_absmax, args_.v, args_.v_absmax}) {
      if (tensor.defined()) all.insert(all.end(), tensor.raw(), tensor.raw() + tensor.size_bytes());
    }
    return all;
  }

 private:
  Kernel kernel_;
  AdamWArgs args_;
};

TEST(AdamWDevices, AgreeBitForBit) {
  cuda::CudaStream stream(std::make_shared<cuda::DeviceMemory>(0), cuda::device_properties(0));
  const Kernel on_cpu = [](const AdamWArgs& args) { cpu::run(args); };
  const Kernel on_gpu = [&stream](const AdamWArgs& args) {
    cuda::run(args, stream);
    stream.synchronize();
  };
  for (const Weights weights : {Weights::kMaster, Weights::kStochastic, Weights::kCompensated}) {
    for (const DType m : {DType::kF32, DType::kBF16, DType::kU8}) {
      for (const DType v : {DType::kF32, DType::kBF16, DType::kU8}) {
        const Format format{m, v, weights};
        State cpu(on_cpu, format), gpu(on_gpu, format);
        const std::vector<std::byte> start = cpu.bytes();
        EXPECT_EQ(gpu.bytes(), start);
        for (uint32_t number = 1; number <= 3; ++number) {
          cpu.update(number);
          gpu.update(number);
        }
        EXPECT_NE(cpu.bytes(), start);
        EXPECT_EQ(gpu.bytes(), cpu.bytes()) << fmt::format("m {}, v {}, weights {}", m, v, static_cast<int>(weights));
      }
    }
  }
}

}  // namespace
}  // namespace mantissa
