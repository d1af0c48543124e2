// The CPU and the emulated GPU update every state bit for bit alike. Of the CPU's instruction sets, those that fuse
// multiply-adds as the GPU does: this needs one of 2013 or later.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/backend/registry.h"
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

// State on one device, from zero moments and random weights.
class Device {
 public:
  Device(const char* name, const Format& format) : backend_(create_backend(name)), stream_(backend_->create_stream()) {
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
    const auto values = floats(random_values(kSize, 2));
    if (args_.master.defined()) {
      backend_->upload(values.data(), args_.master, *stream_);
    } else {
      std::vector<BFloat16> rounded;
      for (const float value : values) rounded.push_back(from_float<BFloat16>(value));
      backend_->upload(rounded.data(), args_.weight, *stream_);
    }
  }

  void update(uint32_t number) {
    std::vector<float> gradient = floats(random_values(kSize, 100 + number));
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= i % 7 == 0 ? 1e-4f : 1.0f;
    backend_->upload(gradient.data(), args_.gradient, *stream_);
    UpdateControl control = kControl;
    control.update = number;
    args_.control = backend_->make_record<UpdateControl>("control");
    backend_->upload(&control, args_.control, *stream_);
    backend_->adamw(args_, *stream_);
    stream_->synchronize();
  }

  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    for (const Tensor& tensor :
         {args_.master, args_.weight, args_.compensation, args_.m, args_.m_absmax, args_.v, args_.v_absmax}) {
      if (!tensor.defined()) continue;
      std::vector<std::byte> bytes(tensor.size_bytes());
      backend_->download(tensor, bytes.data(), *stream_);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  static std::vector<float> floats(const std::vector<double>& values) {
    return std::vector<float>(values.begin(), values.end());
  }
  Tensor make(DType dtype, int64_t numel) { return backend_->make_tensor(dtype, {numel}, "state"); }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  AdamWArgs args_;
};

TEST(AdamWDevices, AgreeBitForBit) {
  for (const Weights weights : {Weights::kMaster, Weights::kStochastic, Weights::kCompensated}) {
    for (const DType m : {DType::kF32, DType::kBF16, DType::kU8}) {
      for (const DType v : {DType::kF32, DType::kBF16, DType::kU8}) {
        const Format format{m, v, weights};
        Device cpu("cpu", format), gpu("cuda", format);
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
