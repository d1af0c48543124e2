// A stand-in for another attention library: our kernels with faults.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/device_cuda.h"
#include "core/kernels/attention/trial_cuda.h"
#include "core/tensor/half.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {

// The results in which the library gives 0 instead of NaN.
enum class Hides { kNothing, kAll, kOut, kLse };

// How the library behaves, and what was called.
struct Behaviour {
  std::string refusal{};  // why the library has no plan
  size_t workspace_bytes = 0;
  float error = 0.0f;  // added to the first element of each row
  float drift = 0.0f;  // added to it as well, growing with each run
  bool fails = false;  // on execution
  bool finds_no_memory = false;
  std::function<void(const AttentionForwardArgs&)> changes{};  // changes the results
  Hides hides = Hides::kNothing;
  std::optional<AttentionFault> hidden{};  // only if the operands have this fault; otherwise always
  std::vector<AttentionPass> planned{};
  int runs = 0;
};

class FaultyPlan final : public AttentionPlan {
 public:
  explicit FaultyPlan(Behaviour& behaviour) : behaviour_(behaviour) {}
  size_t workspace_bytes() const override { return behaviour_.workspace_bytes; }
  void run(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    own_attention_forward(args, stream);
    spoil(args.out, workspace, stream);
    if (behaviour_.changes) {
      stream.synchronize();
      behaviour_.changes(args);
    }
    if (!hides_in(args, stream)) return;
    if (behaviour_.hides != Hides::kLse) hide_in<BFloat16>(args.out);
    if (behaviour_.hides != Hides::kOut) hide_in<float>(args.lse);
  }
  void run(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    own_attention_backward(args, stream);
    spoil(args.d_qkv, workspace, stream);
    if (hides_in(args, stream)) hide_in<BFloat16>(args.d_qkv);
  }

 private:
  static void add_to_first_column(const Tensor& tensor, float error, CudaStream& stream) {
    stream.synchronize();
    const int64_t columns = tensor.shape()[1];
    auto* data = tensor.data<BFloat16>();
    for (int64_t i = 0; i < tensor.numel(); i += columns) data[i] = from_float<BFloat16>(to_float(data[i]) + error);
  }

  // Whether these operands have the fault: it is the first one of its position in the last head.
  template <typename Args>
  static bool has(const AttentionFault& fault, const Args& args) {
    const Tensor* operands = &args.qkv;
    if constexpr (requires { args.d_out; }) {
      if (fault.operand == AttentionFault::Operand::kGradient) operands = &args.d_out;
    }
    const float value = to_float(operands->template data<BFloat16>()[fault.index(args.shape)]);
    return std::isnan(fault.value) ? std::isnan(value) : value == fault.value;
  }

  template <typename T>
  static void hide_in(const Tensor& result) {
    for (int64_t i = 0; i < result.numel(); ++i) {
      T& element = result.data<T>()[i];
      if (!std::isfinite(to_float(element))) element = from_float<T>(0.0f);
    }
  }

  void spoil(const Tensor& result, std::byte* workspace, CudaStream& stream) {
    if (behaviour_.fails) throw CudaError("it failed");
    if (behaviour_.finds_no_memory) throw OutOfDeviceMemory("there is none");
    set_bytes_async(workspace, 0, behaviour_.workspace_bytes, stream.handle());
    ++behaviour_.runs;
    const float error = behaviour_.error + behaviour_.drift * static_cast<float>(behaviour_.runs);
    if (error != 0.0f) add_to_first_column(result, error, stream);
  }
  template <typename Args>
  bool hides_in(const Args& args, CudaStream& stream) const {
    if (behaviour_.hides == Hides::kNothing) return false;
    stream.synchronize();
    return !behaviour_.hidden || has(*behaviour_.hidden, args);
  }
  Behaviour& behaviour_;
};

class FaultyEngine final : public AttentionEngine {
 public:
  explicit FaultyEngine(Behaviour& behaviour) : behaviour_(behaviour) {}
  std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) override {
    behaviour_.planned.push_back(key.pass);
    if (!behaviour_.refusal.empty()) throw CudaError(behaviour_.refusal);
    return std::make_unique<FaultyPlan>(behaviour_);
  }

 private:
  Behaviour& behaviour_;
};

// The library. `behaviour` must outlive it and may change meanwhile.
inline std::unique_ptr<AttentionEngine> faulty_attention(Behaviour& behaviour) {
  return std::make_unique<FaultyEngine>(behaviour);
}

// Passes of one shape, with the library or without.
class FaultyAttention : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 2, kLength = 40, kHeads = 2, kDim = 16;

  FaultyAttention()
      : stream_(std::make_shared<DeviceMemory>(0), device_properties(0)), device_([this] {
          ++opened_;
          return faulty_attention(library_);
        }) {
    const int64_t rows = kBatch * kLength;
    args_ = {.qkv = tensor(DType::kBF16, {rows, 3 * kHeads * kDim}),
             .out = tensor(DType::kBF16, {rows, kHeads * kDim}),
             .lse = tensor(DType::kF32, {kBatch, kHeads, kLength}),
             .shape = {.batch = kBatch,
                       .sequence_length = kLength,
                       .num_heads = kHeads,
                       .num_kv_heads = kHeads,
                       .head_dim = kDim,
                       .scale = 0.25f}};
    set_values(1.0f);
    own_attention_forward(args_, stream_);
    backward_args_ = {.qkv = args_.qkv,
                      .out = args_.out,
                      .lse = args_.lse,
                      .d_out = tensor(DType::kBF16, args_.out.shape()),
                      .d_qkv = tensor(DType::kBF16, args_.qkv.shape()),
                      .shape = args_.shape};
    stream_.synchronize();
    fill(backward_args_.d_out, 1.0f);
  }

  static Tensor tensor(DType dtype, Shape shape) {
    const size_t bytes = static_cast<size_t>(shape.numel() * static_cast<int64_t>(size_bytes(dtype)));
    auto* const data = static_cast<std::byte*>(allocate_device(bytes));
    return {std::make_shared<Storage>(data, bytes, Device{Device::Kind::kCuda, 0}, [data] { free_device(data); }),
            dtype, shape};
  }
  static void fill(const Tensor& tensor, float factor) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      tensor.data<BFloat16>()[i] = from_float<BFloat16>(factor * std::sin(static_cast<float>(i * i % 977)));
    }
  }
  void set_values(float factor) {
    stream_.synchronize();
    fill(args_.qkv, factor);
  }

  void choose(AttentionChoice choice, GemmSelection selection = GemmSelection::kTimed) {
    stream_.set_attention_choice(choice);
    stream_.set_gemm_options({.selection = selection});
  }
  bool forward() { return device_.try_forward(args_, stream_); }
  bool backward() { return device_.try_backward(backward_args_, stream_); }
  std::string error_forward() {
    return testing::error_of([&] { forward(); });
  }
  // Uses a library of its own.
  bool forward_by(Behaviour& library) {
    AttentionDevice device([&] { return faulty_attention(library); });
    return device.try_forward(args_, stream_);
  }
  // The error of kCudnn. Leaves the choice unchanged.
  std::string error_forward_by(Behaviour library) {
    const AttentionChoice before = stream_.attention_choice();
    stream_.set_attention_choice(AttentionChoice::kCudnn);
    std::string error = testing::error_of([&] { forward_by(library); });
    stream_.set_attention_choice(before);
    return error;
  }

  Behaviour library_;
  int opened_ = 0;
  CudaStream stream_;
  AttentionDevice device_;
  AttentionForwardArgs args_;
  AttentionBackwardArgs backward_args_;
};

}  // namespace mantissa::cuda
