#include "comm/local/local_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "comm/local/rank_threads.h"
#include "comm/registry.h"
#include "tests/comm/communicator_contract.h"

namespace mantissa {
namespace {

class LocalCommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(LocalCommunicatorTest, KeepsTheContract) {
  run_ranks(GetParam(), [](Communicator& communicator) { testing::check_communicator_contract(communicator); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalCommunicatorTest, ::testing::Values(1, 2, 3, 4, 5));

TEST(LocalCommunicator, NothingIsDoneBeforeAllRanksHavePosted) {
  // Rank 1 holds back until rank 0 has seen that its gather is not done.
  std::atomic<bool> tested = false;
  run_ranks(2, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      while (!tested) std::this_thread::yield();
    }
    float mine = 0.5f, all[2] = {};
    const auto storage = [](float* data, size_t count) {
      return std::make_shared<Storage>(reinterpret_cast<std::byte*>(data), count * sizeof(float), Device{}, nullptr);
    };
    class NoStream : public Stream {
      std::unique_ptr<Event> record() override { return nullptr; }
      void wait(const Event&) override {}
      void synchronize() override {}
    } stream;
    const auto work = communicator.all_gather(Tensor(storage(&mine, 1), DType::kF32, Shape{1}),
                                              Tensor(storage(all, 2), DType::kF32, Shape{2, 1}), stream);
    if (communicator.rank() == 0) {
      EXPECT_FALSE(work->test());
      tested = true;
    }
    work->wait();
    EXPECT_EQ(all[0], 0.5f);
    EXPECT_EQ(all[1], 0.5f);
  });
}

TEST(LocalCommunicator, DisagreeingRanksGetAnErrorInsteadOfWaiting) {
  std::atomic<int> failures = 0;
  run_ranks(3, [&](Communicator& communicator) {
    const std::vector<std::byte> mine(communicator.rank() == 2 ? 8 : 4);
    try {
      communicator.all_gather_bytes(mine);
    } catch (const CommError& error) {
      ++failures;
      EXPECT_NE(std::string(error.what()).find("ranks disagree on collective 0"), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), ExitCode::kComm);
    }
  });
  EXPECT_EQ(failures, 3);
}

TEST(LocalCommunicator, AbortWakesTheRanksThatWait) {
  std::atomic<int> woken = 0;
  run_ranks(3, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      communicator.abort(5);
      return;
    }
    try {
      communicator.barrier();
    } catch (const CommError& error) {
      ++woken;
      EXPECT_NE(std::string(error.what()).find("rank 1 ended the job with code 5"), std::string::npos) << error.what();
    }
  });
  EXPECT_EQ(woken, 2);
}

TEST(CommunicatorRegistry, FindsTheLinkedTransport) {
  const auto communicator = create_communicator("local");
  EXPECT_EQ(communicator->name(), "local");
  EXPECT_EQ(communicator->size(), 1);
  testing::check_communicator_contract(*communicator);
}

TEST(CommunicatorRegistry, NamesWhatThereIs) {
  try {
    create_communicator("telepathy");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("no transport named 'telepathy'; this build has: local"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace mantissa
