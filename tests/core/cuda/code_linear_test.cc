// Linear layers whose products go to cuBLASLt as codes, against the same layers by emulation: forward and backward,
// from the tape down to the library's descriptors.
#include "core/ops/linear.h"

#include "core/autograd/precision.h"
#include "core/cuda/gemm_emulated.h"
#include "tests/core/cuda/gemm_products.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa::cuda {
namespace {

using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kRows = 32, kInputs = 64, kOutputs = 32;

// Multiples of `step` from -14 to 14, both of which occur: the scale of e4m3 is 32 then, that of e5m2 4096. With a step
// of 1 they have the four bits of e4m3, with a step of 2 the three of e5m2: nothing is rounded, and sums are exact.
Values whole(int64_t count, uint64_t seed, float step) {
  Values values = testing::normal_values(count, seed, 4.0f);
  for (float& value : values) value = std::clamp(std::round(value / step) * step, -14.0f, 14.0f);
  values.front() = -14.0f, values.back() = 14.0f;
  return values;
}

class CodeLinear : public GemmProducts {
 protected:
  CodeLinear() : device_(library_, "") {
    replace_emulated_gemm([this](const GemmArgs& args, CudaStream& stream) {
      if (args.a.dtype() == DType::kU8) ++products_of_codes_;
      multiply(device_, args, stream);
    });
    host_.bind(parameters_);
  }
  ~CodeLinear() override { replace_emulated_gemm({}); }

  struct Result {
    Values y, dx, dw, db;
    bool operator==(const Result&) const = default;
  };
  struct Layer {
    LinearFormats formats{};
    DType dtype = DType::kBF16;
    bool biased = true;
    DelayedScales* scales = nullptr;
    TapeMode mode = TapeMode::kTraining;
  };

  void set_whole_numbers() {
    host_.set_weight(x_, whole(kRows * kInputs, 1, 1.0f));
    host_.set_weight(weight_, whole(kOutputs * kInputs, 2, 1.0f));
    host_.set_weight(bias_, whole(kOutputs, 3, 1.0f));
    dy_ = whole(kRows * kOutputs, 4, 2.0f);
  }
  void set_random_numbers() {
    host_.set_weight(x_, testing::normal_values(kRows * kInputs, 1));
    host_.set_weight(weight_, testing::normal_values(kOutputs * kInputs, 2, 0.05f));
    host_.set_weight(bias_, testing::normal_values(kOutputs, 3));
    dy_ = testing::normal_values(kRows * kOutputs, 4, 1e-4f);
  }

  Result run(const Layer& layer, NarrowMath math) {
    host_.backend().set_gemm_options({.narrow_math = math});
    Precision precision = testing::autocast(layer.dtype);
    precision.linear = layer.formats;
    const UniformPrecision policy(precision);
    parameters_.forget_gradients();
    products_of_codes_ = 0;
    Result result;
    {
      const auto tape = host_.tape(policy, {.delayed_scales = layer.scales, .rounded_weights = &rounded_weights_});
      const Var out = linear(*tape, leaf(*tape, x_), weight_, layer.biased ? &bias_ : nullptr);
      result.y = host_.values(out.value);
      tape->backward(weighted_sum(*tape, out, dy_));
    }
    result.dx = host_.values(x_.gradient);
    result.dw = host_.values(weight_.gradient);
    if (layer.biased) result.db = host_.values(bias_.gradient);
    host_.arena().rewind();
    return result;
  }

  static LinearFormats formats(Scaling scaling) {
    LinearFormats formats;
    for (const Product product : kAllProducts) {
      for (const Role role : kAllRoles) {
        formats.set(product, role, TensorFormat{role == Role::kGradient ? Format::kE5M2 : Format::kE4M3, scaling});
      }
    }
    return formats;
  }

  void advance(DelayedScales& scales) {
    const Tensor all = host_.backend().make_tensor(DType::kU8, scales.records().shape(), "test");
    host_.backend().copy(scales.records(), all, host_.stream());
    scales.advance(all, {});
  }

  GemmDevice device_;
  int products_of_codes_ = 0;
  testing::TapeHost host_;
  RoundedWeights rounded_weights_{host_.backend()};
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("up.weight", {kOutputs, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& bias_ = parameters_.add("up.bias", {kOutputs}, {});
  Values dy_;
};

TEST_F(CodeLinear, WholeNumbersGiveTheSameBits) {
  set_whole_numbers();
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const bool biased : {true, false}) {
      const Layer layer{.formats = formats(Scaling::kCurrent), .dtype = dtype, .biased = biased};
      const Result native = run(layer, NarrowMath::kAuto);
      // The library adds no bias of fp32 to such a product.
      EXPECT_EQ(products_of_codes_, dtype == DType::kF32 && biased ? 2 : 3) << name(dtype);
      const Result emulated = run(layer, NarrowMath::kEmulated);
      EXPECT_EQ(products_of_codes_, 0);
      EXPECT_EQ(native, emulated) << name(dtype) << (biased ? " with bias" : "");
    }
  }
}

// Sums of at most 64 products in fp32 in another order, and where results have 16 bits their rounding.
TEST_F(CodeLinear, RandomNumbersDifferByTheOrderOfSumsAlone) {
  set_random_numbers();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Layer layer{.formats = formats(Scaling::kCurrent), .dtype = dtype, .biased = false};
    const Result native = run(layer, NarrowMath::kAuto);
    EXPECT_EQ(products_of_codes_, 3);
    const Result emulated = run(layer, NarrowMath::kEmulated);
    const double sums = 64 * 0x1p-23, rounding = dtype == DType::kF32 ? 0.0 : 0x1p-8;
    EXPECT_LT(testing::relative_error(native.y, emulated.y), sums + rounding);
    EXPECT_LT(testing::relative_error(native.dx, emulated.dx), sums + rounding);
    EXPECT_LT(testing::relative_error(native.dw, emulated.dw), sums);
  }
}

TEST_F(CodeLinear, DelayedScalingCalibratesByValuesAndGoesOnByCodes) {
  set_random_numbers();
  Layer layer{.formats = formats(Scaling::kDelayed), .dtype = DType::kF32, .biased = false};
  Precision precision = testing::autocast(DType::kF32);
  precision.linear = layer.formats;
  const UniformPrecision policy(precision);
  DelayedScales scales(parameters_, policy, {.history = 4}, host_.backend(), host_.stream());
  layer.scales = &scales;
  scales.begin_calibration();
  run(layer, NarrowMath::kAuto);
  EXPECT_EQ(products_of_codes_, 0);
  advance(scales);
  scales.end_calibration();
  const Result native = run(layer, NarrowMath::kAuto);
  EXPECT_EQ(products_of_codes_, 3);
  const Result emulated = run(layer, NarrowMath::kEmulated);
  EXPECT_LT(testing::relative_error(native.y, emulated.y), 64 * 0x1p-23);
  EXPECT_LT(testing::relative_error(native.dx, emulated.dx), 64 * 0x1p-23);
  EXPECT_LT(testing::relative_error(native.dw, emulated.dw), 64 * 0x1p-23);
}

// As emulation does: of what it rounds, before it does so.
TEST_F(CodeLinear, CodesRecordTheAmaxesOfDelayedScaling) {
  set_random_numbers();
  Layer layer{.formats = formats(Scaling::kDelayed), .dtype = DType::kF32};
  Precision precision = testing::autocast(DType::kF32);
  precision.linear = layer.formats;
  const UniformPrecision policy(precision);
  std::vector<DelayedScales::State> states;
  for (const NarrowMath math : {NarrowMath::kAuto, NarrowMath::kEmulated}) {
    DelayedScales scales(parameters_, policy, {.history = 4}, host_.backend(), host_.stream());
    layer.scales = &scales;
    ++weight_.version;
    run(layer, math);
    advance(scales);
    states.push_back(scales.state());
  }
  EXPECT_EQ(states[0].scales, states[1].scales);
  EXPECT_EQ(states[0].amaxes, states[1].amaxes);
  for (const auto& [role, format] : {std::pair(Role::kActivation, Format::kE4M3),
                                     {Role::kWeight, Format::kE4M3},
                                     {Role::kGradient, Format::kE5M2}}) {
    const std::string name = fmt::format("up.weight/{}/{}", mantissa::name(role), info(format).name);
    const auto found = std::find(states[0].names.begin(), states[0].names.end(), name);
    ASSERT_NE(found, states[0].names.end()) << name;
    EXPECT_NE(states[0].amaxes[static_cast<size_t>(found - states[0].names.begin())], 0) << name;
  }
}

TEST_F(CodeLinear, ProductsThatTheUnitsDoNotTakeAreEmulated) {
  set_whole_numbers();
  const TensorFormat e5m2{Format::kE5M2, Scaling::kCurrent}, block{Format::kE4M3, Scaling::kMicro};
  const auto expect_emulated = [&](Product product, auto&& change) {
    Layer layer{.formats = formats(Scaling::kCurrent)};
    change(layer.formats);
    const Result native = run(layer, NarrowMath::kAuto);
    EXPECT_EQ(products_of_codes_, 2) << name(product);
    EXPECT_EQ(native, run(layer, NarrowMath::kEmulated)) << name(product);
  };
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) {
      if (!multiplies(product, role)) continue;
      expect_emulated(product, [&](LinearFormats& f) { f.set(product, role, std::nullopt); });
      expect_emulated(product, [&](LinearFormats& f) { f.set(product, role, block); });
    }
  }
  expect_emulated(Product::kInputGradient,
                  [&](LinearFormats& f) { f.set(Product::kInputGradient, Role::kWeight, e5m2); });
}

TEST_F(CodeLinear, SizesThatTheUnitsDoNotTakeAreEmulated) {
  ParameterSet parameters;
  Parameter& odd = parameters.add("down.weight", {kOutputs + 8, kInputs}, {Init::Kind::kNormal, 1.0f});
  host_.bind(parameters);
  set_whole_numbers();
  host_.set_weight(odd, whole(odd.numel(), 5, 1.0f));
  Precision precision = testing::autocast(DType::kBF16);
  precision.linear = formats(Scaling::kCurrent);
  const UniformPrecision policy(precision);
  const auto tape = host_.tape(policy, {.rounded_weights = &rounded_weights_});
  linear(*tape, leaf(*tape, x_), odd, nullptr);
  EXPECT_EQ(products_of_codes_, 0);
}

TEST_F(CodeLinear, KeptWeightsAreTwoBytesAnElement) {
  set_random_numbers();
  run({.formats = formats(Scaling::kCurrent)}, NarrowMath::kAuto);
  EXPECT_EQ(rounded_weights_.size_bytes(), 2u * kOutputs * kInputs + sizeof(float) + sizeof(QuantizeRecord));
}

}  // namespace
}  // namespace mantissa::cuda
