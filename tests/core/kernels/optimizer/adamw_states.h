// AdamW states in fewer bits, for tests of its kernels.
#pragma once

#include <functional>
#include <vector>

#include "core/kernels/optimizer/args.h"
#include "core/quant/dynamic_map.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {

enum class WeightState : uint8_t { kMaster, kStochastic, kCompensated };

struct StateFormat {
  DType m = DType::kF32, v = DType::kF32;  // kU8: codes
  WeightState weights = WeightState::kMaster;
};

// All formats with a kernel of their own.
inline std::vector<StateFormat> narrow_formats() {
  std::vector<StateFormat> formats;
  for (const WeightState weights : {WeightState::kMaster, WeightState::kStochastic, WeightState::kCompensated}) {
    for (const DType m : {DType::kF32, DType::kBF16, DType::kU8}) {
      for (const DType v : {DType::kF32, DType::kBF16, DType::kU8}) {
        if (weights == WeightState::kMaster && m != DType::kU8 && v == DType::kF32) continue;
        formats.push_back({m, v, weights});
      }
    }
  }
  return formats;
}

constexpr UpdateControl kStateControl{.apply = 1,
                                      .gradient_multiplier = 0.37f,
                                      .learning_rate = 3e-3f,
                                      .bias_correction1 = 0.271f,
                                      .bias_correction2 = 0.002997f,
                                      .update = 12};

// Codes of every kind, and an absmax for each block.
inline void make_codes(int64_t n, uint64_t seed, Tensor& codes, Tensor& absmax) {
  std::vector<uint8_t> bytes;
  for (const int32_t code : reference::random_integers(n, seed, 256)) bytes.push_back(static_cast<uint8_t>(code));
  codes = make_elements(bytes);
  const int64_t blocks = (n + kDynamicBlock - 1) / kDynamicBlock;
  absmax = make_tensor(DType::kF32, {blocks}, reference::random_values(blocks, seed + 1, 0.01, 0.02));
}

// Arguments of an update of n elements. Masters come with a bf16 weight.
inline AdamWArgs make_state(int64_t n, const StateFormat& format, const UpdateControl& control = kStateControl) {
  using reference::random_values;
  AdamWArgs args{.gradient = make_tensor(DType::kF32, {n}, random_values(n, 1)),
                 .weight_decay = 0.1f,
                 .control = make_record(control),
                 .key = 0x123456789abcdef0u,
                 .moment_key = 0xfedcba9876543210u,
                 .parameter = 7,
                 .first_element = 3 * kDynamicBlock};
  if (format.m == DType::kU8) {
    make_codes(n, 30, args.m, args.m_absmax);
  } else {
    args.m = make_tensor(format.m, {n}, random_values(n, 3, -0.1, 0.1));
  }
  if (format.v == DType::kU8) {
    make_codes(n, 40, args.v, args.v_absmax);
  } else {
    args.v = make_tensor(format.v, {n}, random_values(n, 4, 0.0, 0.01));
  }
  if (format.weights == WeightState::kMaster) {
    args.master = make_tensor(DType::kF32, {n}, random_values(n, 2));
    args.weight = make_unwritten(DType::kBF16, {n});
  } else {
    args.weight = make_tensor(DType::kBF16, {n}, random_values(n, 2));
  }
  if (format.weights == WeightState::kStochastic) args.rounding = WeightRounding::kStochastic;
  if (format.weights == WeightState::kCompensated) {
    args.compensation = make_tensor(DType::kBF16, {n}, random_values(n, 5, -0.001, 0.001));
  }
  return args;
}

// All tensors that an update writes.
inline std::vector<Tensor> tensors_of(const AdamWArgs& args) {
  std::vector<Tensor> tensors;
  for (const Tensor& tensor :
       {args.master, args.weight, args.compensation, args.m, args.m_absmax, args.v, args.v_absmax}) {
    if (tensor.defined()) tensors.push_back(tensor);
  }
  return tensors;
}

inline std::vector<std::byte> bytes_of(const AdamWArgs& args) {
  std::vector<std::byte> all;
  for (const Tensor& tensor : tensors_of(args)) {
    const std::vector<std::byte> bytes = bytes_of(tensor);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// The decoded values of a moment.
inline std::vector<double> moment_values(DynamicMap map, const Tensor& moment, const Tensor& absmax) {
  if (moment.dtype() != DType::kU8) return values_of(moment);
  const std::vector<uint8_t> codes = elements_of<uint8_t>(moment);
  const std::vector<float> scales = elements_of<float>(absmax);
  std::vector<double> values;
  for (size_t i = 0; i < codes.size(); ++i) {
    values.push_back(static_cast<double>(dynamic_value(map, codes[i]) * scales[i / kDynamicBlock]));
  }
  return values;
}

inline void on_each_variant_and_placement(const std::function<void()>& body) {
  device_under_test().on_each_variant([&] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      body();
    }
  });
}

}  // namespace mantissa::kernel_test
