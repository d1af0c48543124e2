#include "core/tensor/tensor.h"

#include <gtest/gtest.h>

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
  EXPECT_THROW(tensor.slice(11, 2), ContractError);  // fits the storage of 16, not the tensor of 12
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

}  // namespace
}  // namespace mantissa
