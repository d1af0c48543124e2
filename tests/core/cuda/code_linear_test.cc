// Linear layers whose products go to cuBLASLt as codes, against emulation of the same layers: forward and backward,
// from the tape down to the library's descriptors.
#include "core/ops/linear.h"

#include <cmath>

#include "core/autograd/precision.h"
#include "core/kernels/gemm/gemm_cuda.h"
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

struct Extents {
  int64_t rows = 32, inputs = 64, outputs = 32;
};

// Multiples of `step` from -14 to 14, both of which occur: the scale is 32 for e4m3 and 4096 for e5m2. They need the
// four bits of e4m3 for a step of 1 and the three of e5m2 for 2, so nothing is rounded and sums are exact.
Values whole(int64_t count, uint64_t seed, float step) {
  Values values = testing::normal_values(count, seed, 4.0f);
  for (float& value : values) value = std::clamp(std::round(value / step) * step, -14.0f, 14.0f);
  values.front() = -14.0f, values.back() = 14.0f;
  return values;
}

class CodeLinear : public GemmProducts {
 protected:
  explicit CodeLinear(Extents extents = {}) : extents_(extents), device_(library_, "") {
    replace_emulated_gemm([this](const GemmArgs& args, CudaStream& stream) {
      if (args.a.dtype() == DType::kU8) ++products_of_codes_;
      stream.set_gemm_options({.selection = selection_});
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
    bool keeps_weights = true;
    DelayedScales* scales = nullptr;
    TapeMode mode = TapeMode::kTraining;
  };

  void set_whole_numbers() {
    host_.set_weight(x_, whole(extents_.rows * extents_.inputs, 1, 1.0f));
    host_.set_weight(weight_, whole(extents_.outputs * extents_.inputs, 2, 1.0f));
    host_.set_weight(bias_, whole(extents_.outputs, 3, 1.0f));
    dy_ = whole(extents_.rows * extents_.outputs, 4, 2.0f);
  }
  void set_random_numbers() {
    host_.set_weight(x_, testing::normal_values(extents_.rows * extents_.inputs, 1));
    host_.set_weight(weight_, testing::normal_values(extents_.outputs * extents_.inputs, 2, 0.05f));
    host_.set_weight(bias_, testing::normal_values(extents_.outputs, 3));
    dy_ = testing::normal_values(extents_.rows * extents_.outputs, 4, 1e-4f);
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
      const auto tape = host_.tape(policy, {.keeps_rounded = layer.keeps_weights, .delayed_scales = layer.scales});
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

  static LinearFormats formats(Scaling scaling, Format of_gradients = Format::kE5M2) {
    LinearFormats formats;
    for (const Product product : kAllProducts) {
      for (const Role role : kAllRoles) {
        formats.set(product, role, TensorFormat{role == Role::kGradient ? of_gradients : Format::kE4M3, scaling});
      }
    }
    return formats;
  }

  void advance(DelayedScales& scales) {
    const Tensor all = host_.backend().make_tensor(DType::kU8, scales.records().shape(), "test");
    host_.backend().copy(scales.records(), all, host_.stream());
    scales.advance(all, {});
  }

  const Extents extents_;
  GemmDevice device_;
  int products_of_codes_ = 0;
  GemmSelection selection_ = GemmSelection::kTimed;
  testing::TapeHost host_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {extents_.rows, extents_.inputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("up.weight", {extents_.outputs, extents_.inputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& bias_ = parameters_.add("up.bias", {extents_.outputs}, {});
  Values dy_;
};

TEST_F(CodeLinear, WholeNumbersGiveTheSameBits) {
  set_whole_numbers();
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const bool biased : {true, false}) {
      const Layer layer{.formats = formats(Scaling::kCurrent), .dtype = dtype, .biased = biased};
      const Result native = run(layer, NarrowMath::kAuto);
      // The library cannot add an fp32 bias to such a product.
      EXPECT_EQ(products_of_codes_, dtype == DType::kF32 && biased ? 2 : 3) << name(dtype);
      const Result emulated = run(layer, NarrowMath::kEmulated);
      EXPECT_EQ(products_of_codes_, 0);
      EXPECT_EQ(native, emulated) << name(dtype) << (biased ? " with bias" : "");
    }
  }
}

// Sums of at most 64 fp32 products in another order, and the rounding of 16-bit results.
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

// As in emulation, amaxes are those of the numbers before rounding.
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
  Parameter& odd = parameters.add("down.weight", {extents_.outputs + 8, extents_.inputs}, {Init::Kind::kNormal, 1.0f});
  host_.bind(parameters);
  set_whole_numbers();
  host_.set_weight(odd, whole(odd.numel(), 5, 1.0f));
  Precision precision = testing::autocast(DType::kBF16);
  precision.linear = formats(Scaling::kCurrent);
  const UniformPrecision policy(precision);
  const auto tape = host_.tape(policy, {.keeps_rounded = true});
  linear(*tape, leaf(*tape, x_), odd, nullptr);
  EXPECT_EQ(products_of_codes_, 0);
}

// Layers whose blocks have scales. Rows, inputs or outputs exceed one block in some direction.
class BlockCodeLinear : public CodeLinear {
 protected:
  explicit BlockCodeLinear(Scaling scaling, Extents extents) : CodeLinear(extents), scaling_(scaling) {
    selection_ = GemmSelection::kDeterministic;  // timing products of this size takes long with a scalar library
  }

  void expect_same_bits(const Layer& layer, int products_of_codes) {
    const Result native = run(layer, NarrowMath::kAuto);
    EXPECT_EQ(products_of_codes_, products_of_codes) << name(layer.dtype);
    const Result emulated = run(layer, NarrowMath::kEmulated);
    EXPECT_EQ(products_of_codes_, 0);
    EXPECT_EQ(native, emulated) << name(scaling_) << " " << name(layer.dtype) << (layer.biased ? " with bias" : "");
  }

  // Codes and emulation round alike, and all bits of exact sums agree.
  void expect_whole_numbers_the_same() {
    set_whole_numbers();
    const LinearFormats e4m3 = formats(scaling_, Format::kE4M3);
    expect_same_bits({.formats = e4m3}, 3);
    expect_same_bits({.formats = e4m3, .biased = false, .keeps_weights = false}, 3);
    expect_same_bits({.formats = e4m3, .dtype = DType::kF16}, 3);
    expect_same_bits({.formats = e4m3, .dtype = DType::kF32, .biased = false}, 3);
    // The library cannot add an fp32 bias to such a product.
    expect_same_bits({.formats = e4m3, .dtype = DType::kF32}, 2);
    expect_same_bits({.formats = formats(scaling_, Format::kE5M2)}, 3);
  }

  // Sums of at most 256 fp32 products in another order, and the rounding of 16-bit results.
  void expect_random_numbers_close() {
    set_random_numbers();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Layer layer{.formats = formats(scaling_, Format::kE4M3), .dtype = dtype, .biased = false};
      const Result native = run(layer, NarrowMath::kAuto);
      EXPECT_EQ(products_of_codes_, 3);
      const Result emulated = run(layer, NarrowMath::kEmulated);
      const double sums = 256 * 0x1p-23, rounding = dtype == DType::kF32 ? 0.0 : 0x1p-8;
      EXPECT_LT(testing::relative_error(native.y, emulated.y), sums + rounding);
      EXPECT_LT(testing::relative_error(native.dx, emulated.dx), sums + rounding);
      EXPECT_LT(testing::relative_error(native.dw, emulated.dw), sums);
    }
  }

  // Emulates a product with an operand that is not rounded, or has scales of another kind, but not the layer's others.
  void expect_others_emulated() {
    set_whole_numbers();
    const TensorFormat tensor{Format::kE4M3, Scaling::kCurrent};
    for (const Product product : kAllProducts) {
      for (const Role role : kAllRoles) {
        if (!multiplies(product, role)) continue;
        for (const std::optional<TensorFormat> format : {std::optional<TensorFormat>(), std::optional(tensor)}) {
          Layer layer{.formats = formats(scaling_, Format::kE4M3)};
          layer.formats.set(product, role, format);
          expect_same_bits(layer, 2);
        }
      }
    }
  }

  // A changed weight is rounded again.
  void expect_new_weights_read() {
    set_random_numbers();
    const Layer layer{.formats = formats(scaling_, Format::kE4M3), .dtype = DType::kF32, .biased = false};
    const Result before = run(layer, NarrowMath::kAuto);
    host_.set_weight(weight_, testing::normal_values(weight_.numel(), 7, 0.05f));
    const Result after = run(layer, NarrowMath::kAuto);
    EXPECT_NE(before.y, after.y);
    EXPECT_NE(before.dx, after.dx);
    EXPECT_EQ(before.dw, after.dw);
  }

  const Scaling scaling_;
};

class BlockLinear : public BlockCodeLinear {
 protected:
  BlockLinear() : BlockCodeLinear(Scaling::kBlock, {.rows = 128, .inputs = 256, .outputs = 128}) {}
};
class MicroLinear : public BlockCodeLinear {
 protected:
  MicroLinear() : BlockCodeLinear(Scaling::kMicro, {.rows = 160, .inputs = 96, .outputs = 192}) {}
};

TEST_F(BlockLinear, WholeNumbersGiveTheSameBits) { expect_whole_numbers_the_same(); }
TEST_F(MicroLinear, WholeNumbersGiveTheSameBits) { expect_whole_numbers_the_same(); }
TEST_F(BlockLinear, RandomNumbersDifferByTheOrderOfSumsAlone) { expect_random_numbers_close(); }
TEST_F(MicroLinear, RandomNumbersDifferByTheOrderOfSumsAlone) { expect_random_numbers_close(); }
TEST_F(BlockLinear, ProductsThatTheUnitsDoNotTakeAreEmulated) { expect_others_emulated(); }
TEST_F(MicroLinear, ProductsThatTheUnitsDoNotTakeAreEmulated) { expect_others_emulated(); }
TEST_F(BlockLinear, NewWeightsAreRounded) { expect_new_weights_read(); }
TEST_F(MicroLinear, NewWeightsAreRounded) { expect_new_weights_read(); }

// The scale modes of each product's operands, in the library's order: fprop, dgrad, wgrad.
TEST_F(BlockLinear, WeightsHaveSquareBlocks) {
  set_whole_numbers();
  run({.formats = formats(scaling_, Format::kE4M3)}, NarrowMath::kAuto);
  constexpr auto kSquare = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, kRow = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const decltype(state().scale_modes) expected{{kSquare, kRow}, {kSquare, kRow}, {kRow, kRow}};
  EXPECT_EQ(state().scale_modes, expected);
}

// Both layouts of codes. Scales of 1 x 2 and 2 x 1 square blocks are padded to 4 side by side.
TEST_F(BlockLinear, KeptWeightsAreTwoBytesAnElementAndScales) {
  set_random_numbers();
  run({.formats = formats(scaling_)}, NarrowMath::kAuto);
  EXPECT_EQ(host_.derived_weights().size_bytes(DerivedKind::kRounded),
            2u * 128 * 256 + (4 + 2 * 4) * sizeof(float) + sizeof(float) + sizeof(QuantizeRecord));
}

// One layout for each of two roundings. Their scales fill 2 x 1 and 1 x 2 tiles of 128 x 4.
TEST_F(MicroLinear, KeptWeightsAreTwoBytesAnElementAndScales) {
  set_random_numbers();
  run({.formats = formats(scaling_)}, NarrowMath::kAuto);
  EXPECT_EQ(host_.derived_weights().size_bytes(DerivedKind::kRounded),
            2u * 192 * 96 + (2 + 2) * 512 + 2 * (sizeof(float) + sizeof(QuantizeRecord)));
}

// Whole blocks, but 24 rows, not a multiple of 16. The weight gradient sums over rows and is not rounded.
class RaggedMicroLinear : public BlockCodeLinear {
 protected:
  RaggedMicroLinear() : BlockCodeLinear(Scaling::kMicro, {.rows = 24, .inputs = 64, .outputs = 32}) {}
};

TEST_F(RaggedMicroLinear, IsEmulated) {
  set_whole_numbers();
  Layer layer{.formats = formats(scaling_, Format::kE4M3)};
  layer.formats.set(Product::kWeightGradient, Role::kActivation, std::nullopt);
  layer.formats.set(Product::kWeightGradient, Role::kGradient, std::nullopt);
  expect_same_bits(layer, 0);
}

TEST_F(CodeLinear, KeptWeightsAreTwoBytesAnElement) {
  set_random_numbers();
  run({.formats = formats(Scaling::kCurrent)}, NarrowMath::kAuto);
  EXPECT_EQ(host_.derived_weights().size_bytes(DerivedKind::kRounded),
            2u * extents_.outputs * extents_.inputs + sizeof(float) + sizeof(QuantizeRecord));
}

}  // namespace
}  // namespace mantissa::cuda
