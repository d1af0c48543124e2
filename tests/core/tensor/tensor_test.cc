#include <gtest/gtest.h>

#include "core/tensor/tensor.h"
#include "tests/core/tensor/host_storage.h"

namespace mantissa {
namespace {

using testing::host_storage;

TEST(TensorTest, DefaultIsUndefined) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_THROW(tensor.data<float>(), ContractError);
  EXPECT_THROW(Tensor(nullptr, DType::kF32, Shape{1}), ContractError);
}

TEST(TensorTest, KnowsItsBytes) {
  const Tensor tensor(host_storage(64), DType::kBF16, Shape{2, 3}, 8);
  EXPECT_EQ(tensor.numel(), 6);
  EXPECT_EQ(tensor.size_bytes(), 12u);
  EXPECT_EQ(tensor.dim(1), 3);
  EXPECT_EQ(tensor.device(), (Device{Device::Kind::kCpu, 0}));
}

TEST(TensorTest, MustFitItsStorage) {
  const auto storage = host_storage(64);
  EXPECT_NO_THROW(Tensor(storage, DType::kF32, Shape{16}));
  EXPECT_THROW(Tensor(storage, DType::kF32, Shape{17}), ContractError);
  EXPECT_NO_THROW(Tensor(storage, DType::kF32, Shape{15}, 4));
  EXPECT_THROW(Tensor(storage, DType::kF32, Shape{16}, 4), ContractError);
}

TEST(TensorTest, TypedAccessChecksTheDtype) {
  const Tensor tensor(host_storage(64), DType::kF16, Shape{4});
  EXPECT_NO_THROW(tensor.data<Float16>());
  EXPECT_THROW(tensor.data<BFloat16>(), ContractError);
  EXPECT_THROW(tensor.data<float>(), ContractError);
}

TEST(TensorTest, ViewsAndSlicesShareTheBytes) {
  const Tensor tensor(host_storage(96), DType::kF32, Shape{4, 5}, 16);
  const Tensor view = tensor.view(Shape{20});
  const Tensor slice = tensor.slice(7, 3);
  EXPECT_EQ(view.raw(), tensor.raw());
  EXPECT_EQ(slice.raw(), tensor.raw() + 7 * sizeof(float));
  EXPECT_EQ(slice.shape(), Shape{3});
  tensor.data<float>()[8] = 42.0f;
  EXPECT_EQ(slice.data<float>()[1], 42.0f);
  EXPECT_EQ(view.slice(2, 10).slice(6, 1).data<float>()[0], 42.0f);  // offsets add up
}

TEST(TensorTest, ViewsAndSlicesAreChecked) {
  const Tensor tensor(host_storage(64), DType::kF32, Shape{3, 4});
  EXPECT_THROW(tensor.view(Shape{13}), ContractError);
  EXPECT_THROW(tensor.slice(-1, 2), ContractError);
  EXPECT_THROW(tensor.slice(0, -1), ContractError);
  EXPECT_THROW(tensor.slice(11, 2), ContractError);  // fits into the storage of 16, but not into the tensor of 12
  EXPECT_EQ(tensor.slice(12, 0).numel(), 0);
}

TEST(TensorTest, UniqueUntilTheStorageIsShared) {
  Tensor tensor(host_storage(64), DType::kF32, Shape{4});
  EXPECT_TRUE(tensor.unique());
  {
    const Tensor slice = tensor.slice(0, 2);
    EXPECT_FALSE(tensor.unique());
  }
  EXPECT_TRUE(tensor.unique());
}

TEST(TensorTest, TheLastTensorReleasesTheStorage) {
  int released = 0;
  alignas(64) std::byte bytes[64];
  Tensor tensor(std::make_shared<Storage>(bytes, sizeof bytes, Device{}, [&] { ++released; }), DType::kU8, Shape{64});
  Tensor slice = tensor.slice(3, 4);
  tensor = Tensor();
  EXPECT_EQ(released, 0);
  slice = Tensor();
  EXPECT_EQ(released, 1);
}

// --- shape

TEST(ShapeTest, AScalarHasOneElement) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.to_string(), "()");
  EXPECT_THROW(scalar[0], ContractError);
  EXPECT_THROW(scalar.last(), ContractError);
}

TEST(ShapeTest, ExtentsAndCount) {
  const Shape shape{2, 3, 5, 7};
  EXPECT_EQ(shape.rank(), 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[3], 7);
  EXPECT_EQ(shape.last(), 7);
  EXPECT_EQ(shape.numel(), 210);
  EXPECT_EQ((Shape{4, 0}).numel(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).numel(), int64_t{1} << 40);
}

TEST(ShapeTest, RankIsPartOfEquality) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{6}), (Shape{2, 3}));
  EXPECT_NE(Shape{}, Shape{0});  // both hold zeros inside
}

TEST(ShapeTest, Formats) { EXPECT_EQ(fmt::format("{} {}", Shape{768}, Shape{2, 3}), "(768) (2, 3)"); }

TEST(ShapeTest, RefusesBadExtentsAndAxes) {
  EXPECT_THROW((Shape{1, 1, 1, 1, 1}), ContractError);
  EXPECT_THROW((Shape{3, -1}), ContractError);
  EXPECT_THROW((Shape{3, 4})[2], ContractError);
  EXPECT_THROW((Shape{3, 4})[-1], ContractError);
}

}  // namespace
}  // namespace mantissa
