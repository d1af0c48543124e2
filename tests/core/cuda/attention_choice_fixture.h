// The fixture of tests that let a faulty library compute attention where AttentionDevice takes it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/device_cuda.h"
#include "core/kernels/attention/own_cuda.h"
#include "core/tensor/half.h"
#include "tests/core/cuda/faulty_attention.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {

class AttentionChoiceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 2, kLength = 40, kHeads = 2, kDim = 16;

  AttentionChoiceTest()
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
                      .shape = {.batch = kBatch,
                                .sequence_length = kLength,
                                .num_heads = kHeads,
                                .num_kv_heads = kHeads,
                                .head_dim = kDim,
                                .scale = 0.25f}};
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
  // By a library of its own.
  bool forward_by(Behaviour& library) {
    AttentionDevice device([&] { return faulty_attention(library); });
    return device.try_forward(args_, stream_);
  }
  // That of kCudnn. Leaves the choice as it is.
  std::string error_forward_by(Behaviour library) {
    const AttentionChoice before = stream_.attention_choice();
    stream_.set_attention_choice(AttentionChoice::kCudnn);
    const std::string error = testing::error_of([&] { forward_by(library); });
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
