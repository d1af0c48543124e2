#include "comm/node/node_exchange.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "comm/local/local_communicator.h"
#include "core/base/error.h"

namespace mantissa {
namespace {

NodeRanks node_of(Communicator& communicator) {
  return {.rank = communicator.rank(), .size = communicator.size(), .gather = [&](std::span<const std::byte> mine) {
            return communicator.all_gather_bytes(mine);
          }};
}

// A rank whose `send` is in node memory and whose `receive` is not.
struct Rank {
  explicit Rank(Communicator& given, int64_t bytes = 1000)
      : communicator(given),
        exchanges(node_of(given)),
        send(exchanges.allocate(static_cast<size_t>(bytes)), DType::kU8, Shape{bytes}),
        receive(static_cast<size_t>(given.size() * bytes)) {}

  void fill(int value) const { std::memset(send.raw(), value, send.size_bytes()); }
  NodeExchangeRequest gather() {
    NodeExchangeRequest request{.kind = NodeExchangeKind::kAllGather,
                                .buffers = {send},
                                .offer = send.raw(),
                                .offer_bytes = send.size_bytes(),
                                .row_bytes = send.size_bytes(),
                                .rows = {}};
    for (int source = 0; source < communicator.size(); ++source) {
      if (source != communicator.rank()) request.rows.push_back({.source = source, .to = row(source)});
    }
    return request;
  }
  std::byte* row(int source) { return receive.data() + static_cast<size_t>(source) * send.size_bytes(); }
  bool row_is(int source, int value) {
    return std::all_of(row(source), row(source) + send.size_bytes(),
                       [value](std::byte byte) { return byte == static_cast<std::byte>(value); });
  }
  void finish(uint64_t number) {
    while (!exchanges.done(number)) {
      exchanges.advance();
      std::this_thread::yield();
    }
  }

  Communicator& communicator;
  NodeExchanges exchanges;
  Tensor send;
  std::vector<std::byte> receive;
};

TEST(NodeExchange, MemoryIsZeroedAlignedAndRecognised) {
  run_ranks(3, [](Communicator& communicator) {
    Rank rank(communicator, 100'001);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(rank.send.raw()) % 64, 0u);
    EXPECT_TRUE(std::all_of(rank.send.raw(), rank.send.raw() + rank.send.size_bytes(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    EXPECT_TRUE(rank.exchanges.holds(rank.send.raw() + 1, 100'000));
    EXPECT_THROW(rank.exchanges.holds(rank.send.raw() + 1, 100'001), ContractError);
    SharedRows all = rank.exchanges.rows_of_all(rank.send);
    const std::byte* const theirs = all.rows.raw() + (communicator.rank() + 1) % 3 * all.stride;
    EXPECT_THROW(rank.exchanges.holds(theirs, 1), ContractError) << "another rank's";
    all = {};  // the exchange keeps the memory alive
    EXPECT_FALSE(rank.exchanges.holds(rank.receive.data(), 1));
    const std::byte* const before = rank.send.raw();
    rank.send = Tensor();
    EXPECT_FALSE(rank.exchanges.holds(before, 1));
    communicator.barrier();
  });
}

// Rank 1 reads late; until then the buffer must not be free.
TEST(NodeExchange, IsNotDoneBeforeAllOthersHaveRead) {
  run_ranks(2, [](Communicator& communicator) {
    Rank rank(communicator);
    rank.fill(communicator.rank() + 1);
    if (communicator.rank() == 1) {
      const uint64_t number = rank.exchanges.start(rank.gather());
      communicator.barrier();  // rank 0 starts after this
      communicator.barrier();
      EXPECT_FALSE(rank.row_is(0, 1)) << "nothing moves by itself";
      rank.exchanges.advance();
      EXPECT_TRUE(rank.row_is(0, 1));
      EXPECT_TRUE(rank.exchanges.done(number));
      communicator.barrier();
    } else {
      communicator.barrier();
      const uint64_t number = rank.exchanges.start(rank.gather());
      for (int look = 0; look < 1000; ++look) rank.exchanges.advance();
      EXPECT_TRUE(rank.row_is(1, 2));
      EXPECT_FALSE(rank.exchanges.done(number));
      communicator.barrier();
      communicator.barrier();
      rank.exchanges.advance();
      EXPECT_TRUE(rank.exchanges.done(number));
    }
    communicator.barrier();
  });
}

TEST(NodeExchange, AMeetingIsDoneWhenAllHaveComeAndNotBefore) {
  run_ranks(3, [](Communicator& communicator) {
    Rank rank(communicator);
    const bool late = communicator.rank() == 2;
    uint64_t number = 0;
    if (!late) number = rank.exchanges.start(barrier_request(rank.exchanges.node()));
    for (int look = 0; !late && look < 1000; ++look) {
      rank.exchanges.advance();
      ASSERT_FALSE(rank.exchanges.done(number));
    }
    communicator.barrier();
    if (late) number = rank.exchanges.start(barrier_request(rank.exchanges.node()));
    EXPECT_EQ(late, rank.exchanges.done(number)) << "the last rank does not wait";
    communicator.barrier();
    rank.exchanges.advance();
    EXPECT_TRUE(rank.exchanges.done(number));
    communicator.barrier();
  });
}

// Sizes below, at and above whole pages of both kinds.
TEST(NodeExchange, EveryRanksMemoryIsReadInPlaceBetweenMeetings) {
  for (const int64_t bytes : {100, 4096, 5000, 2 << 20, (2 << 20) + 40}) {
    run_ranks(3, [bytes](Communicator& communicator) {
      Rank rank(communicator, bytes);
      const Tensor mine = rank.send.slice(8, bytes - 8);
      const SharedRows all = rank.exchanges.rows_of_all(mine);
      ASSERT_EQ(all.rows.shape(), Shape({3, bytes - 8}));
      EXPECT_EQ(all.rows.raw() + communicator.rank() * all.stride, mine.raw());
      const SharedRows words = rank.exchanges.rows_of_all(
          Tensor(std::make_shared<Storage>(mine.raw(), 8, Device{}, nullptr), DType::kF32, Shape{2}));
      EXPECT_EQ(4 * words.stride, all.stride);
      for (int round = 0; round < 50; ++round) {
        rank.fill(round * 3 + communicator.rank());
        rank.finish(rank.exchanges.start(barrier_request(rank.exchanges.node())));
        for (int source = 0; source < 3; ++source) {
          const std::byte* const row = all.rows.raw() + source * all.stride;
          EXPECT_EQ(std::count(row, row + bytes - 8, static_cast<std::byte>(round * 3 + source)), bytes - 8);
        }
        rank.finish(rank.exchanges.start(barrier_request(rank.exchanges.node())));
      }
      std::vector<std::byte> own(64);
      const Tensor elsewhere(std::make_shared<Storage>(own.data(), own.size(), Device{}, nullptr), DType::kU8,
                             Shape{64});
      EXPECT_FALSE(rank.exchanges.rows_of_all(elsewhere).rows.defined());
      communicator.barrier();
    });
  }
}

// Each rank reuses its buffer as soon as allowed.
TEST(NodeExchange, ReusedBuffersArriveAsTheyWere) {
  run_ranks(3, [](Communicator& communicator) {
    Rank rank(communicator, 5000);
    for (int round = 0; round < 300; ++round) {
      rank.fill(round * 3 + communicator.rank());
      rank.finish(rank.exchanges.start(rank.gather()));
      rank.fill(255);
      for (int source = 0; source < 3; ++source) {
        EXPECT_TRUE(source == communicator.rank() || rank.row_is(source, (round * 3 + source) & 0xff));
      }
    }
    communicator.barrier();
  });
}

// Many rounds: places on the board become free at any moment of the other rank.
TEST(NodeExchange, MoreMayBeUnderWayThanTheBoardHasPlaces) {
  run_ranks(2, [](Communicator& communicator) {
    Rank rank(communicator, 64);
    rank.fill(communicator.rank() + 1);
    const int count = 3 * static_cast<int>(NodeExchanges::kPlaces);
    for (int round = 0; round < 300; ++round) {
      std::vector<uint64_t> numbers;
      for (int i = 0; i < count; ++i) numbers.push_back(rank.exchanges.start(rank.gather()));
      std::reverse(numbers.begin(), numbers.end());
      for (const uint64_t number : numbers) rank.finish(number);
    }
    EXPECT_TRUE(rank.exchanges.buffers().empty());
    EXPECT_TRUE(rank.row_is(1 - communicator.rank(), 2 - communicator.rank()));
    communicator.barrier();
  });
}

TEST(NodeExchange, RanksThatDisagreeAreTold) {
  run_ranks(2, [](Communicator& communicator) {
    Rank rank(communicator);
    NodeExchangeRequest request = rank.gather();
    if (communicator.rank() == 1) request.offer_bytes = 999;
    EXPECT_THROW(rank.finish(rank.exchanges.start(std::move(request))), CommError);
    communicator.barrier();
  });
}

TEST(NodeExchange, MemoryThatAReaderHasGivenBackIsToldOf) {
  run_ranks(2, [](Communicator& communicator) {
    Rank rank(communicator);
    NodeExchangeRequest request = rank.gather();
    if (communicator.rank() == 1) {
      request.buffers.clear();
      request.offer = nullptr;
      rank.send = Tensor();
    }
    if (communicator.rank() == 0) rank.exchanges.start(std::move(request));
    communicator.barrier();
    if (communicator.rank() == 1) {
      EXPECT_THROW(rank.exchanges.start(std::move(request)), CommError);
    }
    communicator.barrier();
  });
}

// Rank 1 sends a wrong ticket, as if its container had its own process numbers.
TEST(NodeExchange, MemoryThatOneRankCannotOpenIsRefusedByAll) {
  run_ranks(3, [](Communicator& communicator) {
    NodeRanks node = node_of(communicator);
    int tickets = 0;
    node.gather = [&, honest = node.gather](std::span<const std::byte> mine) {
      std::vector<std::byte> record(mine.begin(), mine.end());
      if (mine.size() == sizeof(NodeBlock::Ticket) && ++tickets == 1 && communicator.rank() == 1) {
        NodeBlock::Ticket ticket;
        std::memcpy(&ticket, record.data(), sizeof(ticket));
        ++ticket.inode;
        std::memcpy(record.data(), &ticket, sizeof(ticket));
      }
      return honest(record);
    };
    std::string reason;
    EXPECT_EQ(NodeBlock::share(node, 4096, reason), nullptr);
    EXPECT_NE(reason.find("container"), std::string::npos) << reason;
    EXPECT_NE(NodeBlock::share(node, 4096, reason), nullptr) << reason;
    EXPECT_EQ(reason, "");
  });
}

TEST(NodeExchange, RanksThatAskForDifferentSizesAreToldAndNothingIsMappedOver) {
  run_ranks(3, [](Communicator& communicator) {
    std::string reason;
    const size_t bytes = communicator.rank() == 0 ? 4096 : size_t{64} << 20;
    EXPECT_EQ(NodeBlock::share(node_of(communicator), bytes, reason), nullptr);
    EXPECT_NE(reason.find("asks for"), std::string::npos) << reason;
    EXPECT_NE(NodeBlock::share(node_of(communicator), 4096, reason), nullptr) << reason;
  });
}

int mapped_files() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:mantissa") != std::string::npos;
  return count;
}

// Blocks begin at huge-page boundaries, so that the system can grant huge pages. The last user frees the memory.
TEST(NodeExchange, BlocksAreAlignedAndGivenBack) {
  run_ranks(2, [](Communicator& communicator) {
    for (const size_t bytes : {size_t{4096}, kHugePageBytes, 3 * kHugePageBytes + 64}) {
      std::string reason;
      auto block = NodeBlock::share(node_of(communicator), bytes, reason);
      ASSERT_NE(block, nullptr) << reason;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block->of_rank(0)) % kHugePageBytes, 0u);
      EXPECT_EQ(block->distance_bytes() % (bytes >= kHugePageBytes ? kHugePageBytes : 4096), 0u);
      EXPECT_GE(block->distance_bytes(), bytes);
      for (int rank = 0; rank < 2; ++rank) block->of_rank(rank)[bytes - 1] = std::byte{1};
      communicator.barrier();
      EXPECT_EQ(mapped_files(), 4);  // two ranks, each with both mapped
      communicator.barrier();
      block.reset();
      communicator.barrier();
      EXPECT_EQ(mapped_files(), 0);
      communicator.barrier();
    }
  });
}

TEST(NodeExchange, SizesThatTheSystemRefusesAreAReasonAndNoSignal) {
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = usual.rlim_max};
  run_ranks(2, [&](Communicator& communicator) {
    NodeExchanges exchanges(node_of(communicator));
    communicator.barrier();
    if (communicator.rank() == 0) setrlimit(RLIMIT_FSIZE, &small);
    communicator.barrier();
    EXPECT_EQ(exchanges.allocate(2 << 20), nullptr);
    EXPECT_NE(exchanges.failure().find("ulimit -f"), std::string::npos) << exchanges.failure();
    EXPECT_NE(exchanges.allocate(1 << 19), nullptr) << exchanges.failure();
    communicator.barrier();
  });
  setrlimit(RLIMIT_FSIZE, &usual);
}

}  // namespace
}  // namespace mantissa
