// Collectives of the real NCCL on one real GPU (CUDA_VISIBLE_DEVICES); tools/gpu_check runs it. A single rank connects,
// launches, captures and ends like any number of ranks, while training on one rank runs no collective.
#include <gtest/gtest.h>

#include <vector>

#include "comm/local/local_communicator.h"
#include "comm/nccl/nccl_communicator.h"
#include "core/backend/registry.h"
#include "core/kernels/elementwise/args.h"

namespace mantissa::testing {
namespace {

constexpr int64_t kElements = 1000;

class NcclOnADevice : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      communicator_ = create_nccl_communicator(load_nccl(), LocalGroup(1).take(0));
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
    std::vector<float> initial(kElements);
    for (size_t i = 0; i < initial.size(); ++i) initial[i] = static_cast<float>(i) - 400.0f;
    backend_->upload(initial.data(), values_, *compute_);
    compute_->synchronize();
  }

  Tensor tensor(Shape shape) { return backend_->make_tensor(DType::kF32, shape, "test"); }

  // Doubles the values via another stream and leaves a copy in gathered_.
  void step() {
    exchange_->wait(*compute_->record());
    communicator_->all_to_all(values_.view({1, kElements}), received_, *exchange_)->wait();
    compute_->wait(*exchange_->record());
    backend_->run(AddArgs{.a = values_, .b = received_.view({kElements}), .y = values_}, *compute_);
    exchange_->wait(*compute_->record());
    communicator_->all_gather(values_, gathered_, *exchange_)->wait();
    compute_->wait(*exchange_->record());
  }

  void expect_doubled(int times) {
    for (const Tensor& tensor : {values_, gathered_}) {
      std::vector<float> found(kElements);
      backend_->download(tensor, found.data(), *compute_);
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i], static_cast<float>(1 << times) * (static_cast<float>(i) - 400.0f)) << i;
      }
    }
  }

  std::unique_ptr<Backend> backend_ = create_backend("cuda");
  std::unique_ptr<Stream> compute_ = backend_->create_stream(), exchange_ = backend_->create_stream();
  Tensor values_ = tensor({kElements}), received_ = tensor({1, kElements}), gathered_ = tensor({1, kElements});
  std::unique_ptr<Communicator> communicator_;
};

TEST_F(NcclOnADevice, CollectivesMoveData) {
  step();
  step();
  expect_doubled(2);
}

TEST_F(NcclOnADevice, CapturedCollectivesRepeatThemselves) {
  step();
  const std::unique_ptr<CapturedWork> captured = backend_->capture(*compute_, [this] { step(); });
  for (int i = 0; i < 3; ++i) {
    captured->launch();
    communicator_->watch_captured(*compute_);
  }
  step();
  captured->launch();
  communicator_->watch_captured(*compute_);
  expect_doubled(6);
}

}  // namespace
}  // namespace mantissa::testing
