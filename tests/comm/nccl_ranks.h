// Ranks on the emulated GPU with a stand-in for NCCL, for tests of the NCCL transport.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "comm/nccl/nccl_communicator.h"
#include "tests/comm/emulated_gpu.h"
#include "tests/comm/fake_nccl.h"

namespace mantissa::testing {

inline constexpr int kSharingVersion = 23000;  // all ranks share the one emulated GPU

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); }
  void TearDown() override {
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    EXPECT_EQ(fake_nccl_counts().group_depth, 0);
    EXPECT_EQ(fake_nccl_counts().misuses, 0);
  }

  template <typename Body>
  static void run_ranks(int ranks, const NcclApi& api, const NcclOptions& options, Body body) {
    mantissa::run_ranks(ranks, [&](Communicator& local) {
      EmulatedGpu gpu;
      const auto nccl = create_nccl_communicator(api, std::make_unique<ForwardingCommunicator>(local), options);
      body(*nccl, gpu);
    });
  }
};

// One rank with its tensors.
struct OneRank {
  explicit OneRank(const NcclApi& api, const NcclOptions& options = {})
      : communicator(create_nccl_communicator(api, LocalGroup(1).take(0), options)) {}

  EmulatedGpu gpu;
  std::unique_ptr<Stream> stream = gpu.create_stream();
  Tensor row = gpu.make(DType::kBF16, Shape{6}), rows = gpu.make(DType::kBF16, Shape{1, 6});
  std::unique_ptr<Communicator> communicator;

  std::unique_ptr<Work> gather() { return communicator->all_gather(row, rows, *stream); }
};

template <typename Failure = CommError, typename Call>
std::string failure_of(Call call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

// Waits for the stream as a thread waits for a GPU.
inline void wait_for(Stream& stream) {
  const auto end = stream.record();
  while (!end->done()) std::this_thread::yield();
}

}  // namespace mantissa::testing
