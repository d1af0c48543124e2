#include "tests/comm/random_collectives.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>

namespace mantissa::testing {
namespace {

using Random = std::mt19937_64;

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }

struct Exchange {
  int id = 0;
  int kind = 0;  // 0 all_to_all, 1 all_gather
  Stream* stream = nullptr;
  Tensor send, receive;
  Tensor seen;  // what a copy behind the collective got
  std::unique_ptr<Work> work;
};

class Rank {
 public:
  Rank(Communicator& communicator, TensorPlace& place, const RandomCollectives& options)
      : communicator_(communicator),
        place_(place),
        options_(options),
        shared_(options.seed),
        own_(options.seed * 1000 + static_cast<uint64_t>(communicator.rank())) {
    for (int i = 0; i < options.streams; ++i) streams_.push_back(place.create_stream());
  }

  void run() {
    for (int id = 0; id < options_.count; ++id) {
      exchanges_.push_back(start(id));
      // On all ranks, else those that wait for it would do so for ever.
      if (options_.abandoned == AbandonedWorks::kSome && below(shared_, 4) == 0) exchanges_.pop_back();
      // A rank that is blocked in a host operation does not go on with its collectives, so nobody may wait for those
      // before it: host operations come in the first half, waits in the second.
      const bool may_wait = id >= options_.count / 2;
      for (int looks = below(own_, 4); looks > 0; --looks) look_at_one(may_wait);
      const int host = may_wait ? -1 : below(shared_, 6);
      if (host == 0) communicator_.barrier();
      if (host == 1) {
        const std::vector<int> ranks = all_gather_records(communicator_, communicator_.rank() + id);
        for (int rank = 0; rank < communicator_.size(); ++rank) EXPECT_EQ(ranks[static_cast<size_t>(rank)], rank + id);
      }
    }
    while (!exchanges_.empty()) {
      const auto chosen = exchanges_.begin() + below(own_, static_cast<int>(exchanges_.size()));
      if (chosen->work) {
        chosen->work->wait();
        look_behind(*chosen);
      }
      check(*chosen);
      exchanges_.erase(chosen);
    }
  }

 private:
  Exchange start(int id) {
    const int ranks = communicator_.size(), mine = communicator_.rank();
    Exchange exchange;
    exchange.id = id;
    exchange.kind = below(shared_, 2);
    exchange.stream = streams_[static_cast<size_t>(below(shared_, options_.streams))].get();
    const DType dtype = std::array{DType::kF32, DType::kBF16, DType::kU8}[static_cast<size_t>(below(shared_, 3))];
    const int64_t count = below(shared_, 8) == 0 ? 9'001 : 1 + below(shared_, 300);
    exchange.receive = place_.make(dtype, Shape{ranks, count});
    const int64_t row_bytes = count * size_bytes(dtype);
    if (exchange.kind == 0) {
      const Tensor send = exchange.send = place_.make(dtype, Shape{ranks, count});
      const auto ends = [&](int to) { return std::pair(mine, to); };
      place_.write(rows(ranks, row_bytes, ends, id), send, *exchange.stream);
      exchange.work = communicator_.all_to_all(send, exchange.receive, *exchange.stream);
    } else {
      const bool in_place = id % 2 == 0;
      const Tensor send = exchange.send =
          in_place ? exchange.receive.slice(mine * count, count) : place_.make(dtype, Shape{count});
      const auto ends = [&](int) { return std::pair(mine, 0); };
      place_.write(rows(1, row_bytes, ends, id), send, *exchange.stream);
      exchange.work = communicator_.all_gather(send, exchange.receive, *exchange.stream);
    }
    return exchange;
  }

  template <typename RowEnds>
  static std::vector<std::byte> rows(int count, int64_t row_bytes, RowEnds ends, int id) {
    std::vector<std::byte> bytes;
    for (int row = 0; row < count; ++row) {
      const auto [source, destination] = ends(row);
      for (int64_t i = 0; i < row_bytes; ++i) bytes.push_back(mark(source, destination, i, id));
    }
    return bytes;
  }

  void look_at_one(bool may_wait) {
    if (exchanges_.empty()) return;
    Exchange& chosen = exchanges_[static_cast<size_t>(below(own_, static_cast<int>(exchanges_.size())))];
    if (!chosen.work) return;
    const bool wait = may_wait && below(own_, 4) == 0;
    if (wait) chosen.work->wait();
    if (wait || chosen.work->test()) look_behind(chosen);
  }

  // What follows a collective is queued without the host having seen its result.
  void look_behind(Exchange& exchange) {
    EXPECT_TRUE(exchange.work->test());
    exchange.work.reset();
    Stream* stream = exchange.stream;
    if (below(own_, 2) == 0) {
      Stream& other = *streams_[static_cast<size_t>(below(own_, options_.streams))];
      other.wait(*stream->record());
      stream = &other;
    }
    exchange.seen = place_.make(exchange.receive.dtype(), exchange.receive.shape());
    place_.copy(exchange.receive, exchange.seen, *stream);
    exchange.stream = stream;
  }

  void check(const Exchange& exchange) {
    const int ranks = communicator_.size(), mine = communicator_.rank();
    const auto row_bytes = static_cast<int64_t>(exchange.receive.size_bytes()) / ranks;
    const auto ends = [&](int row) { return std::pair(row, exchange.kind == 0 ? mine : 0); };
    EXPECT_EQ(place_.read(exchange.seen, *exchange.stream), rows(ranks, row_bytes, ends, exchange.id))
        << "kind " << exchange.kind << ", exchange " << exchange.id << ", seed " << options_.seed;
  }

  Communicator& communicator_;
  TensorPlace& place_;
  const RandomCollectives& options_;
  Random shared_, own_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Exchange> exchanges_;
};

}  // namespace

void run_random_collectives(Communicator& communicator, TensorPlace& place, const RandomCollectives& options) {
  Rank(communicator, place, options).run();
}

}  // namespace mantissa::testing
