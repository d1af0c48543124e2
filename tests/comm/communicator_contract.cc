#include "tests/comm/communicator_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <utility>

namespace mantissa::testing {
namespace {

// Far above the size (4 KiB to 64 KiB) up to which MPI sends without waiting for the receiver.
constexpr int64_t kLargeElements = 300'007;

Tensor row_of(const Tensor& tensor, int row, int rows) {
  const int64_t count = tensor.numel() / rows;
  return tensor.slice(row * count, count);
}

// Memory and stream of one check.
struct Bench {
  Communicator& communicator;
  TensorPlace& place;
  Stream& stream;

  Tensor make(DType dtype, Shape shape) const { return place.make(dtype, shape); }
  void fill_row(const Tensor& tensor, int row, int rows, int source, int destination, int exchange) const {
    const Tensor part = row_of(tensor, row, rows);
    std::vector<std::byte> bytes(part.size_bytes());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = mark(source, destination, static_cast<int64_t>(i), exchange);
    place.write(bytes, part, stream);
  }
  void expect_row(const Tensor& tensor, int row, int rows, int source, int destination, int exchange) const {
    const std::vector<std::byte> bytes = place.read(row_of(tensor, row, rows), stream);
    int64_t wrong = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      wrong += bytes[i] != mark(source, destination, static_cast<int64_t>(i), exchange);
    }
    EXPECT_EQ(wrong, 0) << "bytes of the row from rank " << source << " to " << destination << ", exchange "
                        << exchange;
  }
};

// A collective that can run concurrently with others.
struct Exchange {
  const Bench& bench;
  int id;
  Tensor send, receive;
  std::unique_ptr<Work> work;

  void start_all_to_all(DType dtype, int64_t count) {
    const int ranks = bench.communicator.size();
    send = bench.make(dtype, Shape{ranks, count});
    receive = bench.make(dtype, Shape{ranks, count});
    for (int to = 0; to < ranks; ++to) bench.fill_row(send, to, ranks, bench.communicator.rank(), to, id);
    work = bench.communicator.all_to_all(send, receive, bench.stream);
  }
  void start_all_gather(DType dtype, int64_t count) {
    send = bench.make(dtype, Shape{count});
    receive = bench.make(dtype, Shape{bench.communicator.size(), count});
    bench.fill_row(send, 0, 1, bench.communicator.rank(), 0, id);
    work = bench.communicator.all_gather(send, receive, bench.stream);
  }
  void expect_all_to_all() const {
    const int ranks = bench.communicator.size();
    for (int from = 0; from < ranks; ++from) {
      bench.expect_row(receive, from, ranks, from, bench.communicator.rank(), id);
    }
  }
  void expect_all_gather() const {
    const int ranks = bench.communicator.size();
    for (int from = 0; from < ranks; ++from) bench.expect_row(receive, from, ranks, from, 0, id);
  }
};

void check_identity(Communicator& communicator) {
  EXPECT_GE(communicator.rank(), 0);
  EXPECT_LT(communicator.rank(), communicator.size());
  EXPECT_GE(communicator.local_rank(), 0);
  EXPECT_LT(communicator.local_rank(), communicator.local_size());
  EXPECT_LE(communicator.local_size(), communicator.size());
  const std::vector<int> ranks = all_gather_records(communicator, communicator.rank());
  for (int rank = 0; rank < communicator.size(); ++rank) EXPECT_EQ(ranks[static_cast<size_t>(rank)], rank);
}

void check_sizes_and_dtypes(const Bench& bench) {
  int id = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1003}, kLargeElements}) {
      Exchange scatter{bench, ++id, {}, {}, {}};
      scatter.start_all_to_all(dtype, count);
      scatter.work->wait();
      scatter.expect_all_to_all();
      Exchange gather{bench, ++id, {}, {}, {}};
      gather.start_all_gather(dtype, count);
      gather.work->wait();
      gather.expect_all_gather();
    }
  }
}

void check_gather_in_place(const Bench& bench) {
  const int ranks = bench.communicator.size(), mine = bench.communicator.rank();
  const Tensor all = bench.make(DType::kF32, Shape{ranks, kLargeElements});
  bench.fill_row(all, mine, ranks, mine, 0, 77);
  bench.communicator.all_gather(all.slice(mine * kLargeElements, kLargeElements), all, bench.stream)->wait();
  for (int from = 0; from < ranks; ++from) bench.expect_row(all, from, ranks, from, 0, 77);
}

// Several collectives at once, finished in reverse order and partly by test() alone.
void check_many_in_flight(const Bench& bench) {
  std::deque<Exchange> exchanges;
  for (int id = 0; id < 10; ++id) {
    Exchange& exchange = exchanges.emplace_back(bench, 200 + id, Tensor{}, Tensor{}, nullptr);
    const int64_t count = id % 3 == 0 ? kLargeElements : 17 * id;
    if (id % 2 == 0) {
      exchange.start_all_to_all(DType::kBF16, count);
    } else {
      exchange.start_all_gather(DType::kF32, count);
    }
    if (id == 4) bench.communicator.barrier();
  }
  while (!exchanges.front().work->test()) {
  }
  for (int id = 9; id >= 0; --id) {
    Exchange& exchange = exchanges[static_cast<size_t>(id)];
    exchange.work->wait();
    exchange.work->wait();  // calling wait() again is allowed
    EXPECT_TRUE(exchange.work->test());
    id % 2 == 0 ? exchange.expect_all_to_all() : exchange.expect_all_gather();
  }
}

void check_records(Communicator& communicator) {
  struct Record {
    double value;
    int64_t rank;
  };
  for (int round = 0; round < 3; ++round) {
    const auto records =
        all_gather_records(communicator, Record{round + communicator.rank() / 8.0, communicator.rank()});
    ASSERT_EQ(static_cast<int>(records.size()), communicator.size());
    for (int rank = 0; rank < communicator.size(); ++rank) {
      EXPECT_EQ(records[static_cast<size_t>(rank)].value, round + rank / 8.0);
      EXPECT_EQ(records[static_cast<size_t>(rank)].rank, rank);
    }
  }
  EXPECT_TRUE(communicator.all_gather_bytes({}).empty());
}

void check_texts(Communicator& communicator) {
  const auto text_of = [](size_t rank) { return std::string(rank * 1000, 'a') + '\0' + std::to_string(rank); };
  const auto list_of = [](size_t rank) { return std::vector<std::string>(rank, std::to_string(rank)); };
  const auto mine = static_cast<size_t>(communicator.rank());
  const auto texts = all_gather_texts(communicator, text_of(mine));
  const auto lists = all_gather_text_lists(communicator, list_of(mine));
  ASSERT_EQ(texts.size(), static_cast<size_t>(communicator.size()));
  ASSERT_EQ(lists.size(), texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    EXPECT_EQ(texts[rank], text_of(rank));
    EXPECT_EQ(lists[rank], list_of(rank));
  }
  EXPECT_EQ(all_gather_texts(communicator, ""), std::vector<std::string>(texts.size()));
  const std::vector<std::string> with_empty = {"", "b", ""};
  EXPECT_EQ(all_gather_text_lists(communicator, with_empty).back(), with_empty);
}

// All ranks throw the error of any rank. A rank out of memory rethrows std::bad_alloc alone.
void check_errors_of_all(Communicator& communicator) {
  const int last = communicator.size() - 1;
  run_on_all<DataError>(communicator, "", [] {});
  std::string message;
  try {
    run_on_all<DataError>(communicator, "reading: ", [&] {
      if (communicator.rank() == last) throw std::runtime_error("no file");
    });
  } catch (const DataError& error) {
    message = error.what();
  }
  EXPECT_EQ(message, last == 0 ? "reading: no file" : "reading: no file (rank " + std::to_string(last) + ")");
  EXPECT_THROW(run_on_all<DataError>(communicator, "", [] { throw std::bad_alloc(); }), std::bad_alloc);
}

// Wrong operands are rejected before anything is sent, so that no rank hangs.
void check_misuse(const Bench& bench) {
  Communicator& communicator = bench.communicator;
  Stream& stream = bench.stream;
  const int ranks = communicator.size();
  const Tensor rows = bench.make(DType::kF32, Shape{ranks, 8});
  const Tensor more_rows = bench.make(DType::kF32, Shape{ranks + 1, 8});
  const Tensor row = bench.make(DType::kF32, Shape{8}), short_row = bench.make(DType::kF32, Shape{7});
  const Tensor low_row = bench.make(DType::kBF16, Shape{8});
  EXPECT_THROW(communicator.all_to_all(more_rows, more_rows, stream), ContractError);
  EXPECT_THROW(communicator.all_to_all(rows, bench.make(DType::kBF16, Shape{ranks, 8}), stream), ContractError);
  EXPECT_THROW(communicator.all_gather(short_row, rows, stream), ContractError);
  EXPECT_THROW(communicator.all_gather(low_row, rows, stream), ContractError);
  EXPECT_THROW(communicator.all_gather(Tensor(), rows, stream), ContractError);
  EXPECT_THROW(communicator.all_gather(row, Tensor(), stream), ContractError);
}

using Random = std::mt19937_64;

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }

struct RandomExchange {
  int id = 0;
  int kind = 0;  // 0 all_to_all, 1 all_gather
  Stream* stream = nullptr;
  Tensor send, receive;
  Tensor seen;  // result of a copy after the collective
  std::unique_ptr<Work> work;
};

class RandomRank {
 public:
  RandomRank(Communicator& communicator, TensorPlace& place, const RandomCollectives& options)
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
      // Abandon it on all ranks: a rank that waits for it would hang.
      if (options_.abandoned == AbandonedWorks::kSome && below(shared_, 4) == 0) exchanges_.pop_back();
      // A rank that blocks in a host operation does not advance its collectives, so nobody may wait for earlier ones:
      // host operations come in the first half, waits in the second.
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
  RandomExchange start(int id) {
    const int ranks = communicator_.size(), mine = communicator_.rank();
    RandomExchange exchange;
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
    RandomExchange& chosen = exchanges_[static_cast<size_t>(below(own_, static_cast<int>(exchanges_.size())))];
    if (!chosen.work) return;
    const bool wait = may_wait && below(own_, 4) == 0;
    if (wait) chosen.work->wait();
    if (wait || chosen.work->test()) look_behind(chosen);
  }

  // Queues work after a collective before the host has seen its result.
  void look_behind(RandomExchange& exchange) {
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

  void check(const RandomExchange& exchange) {
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
  std::vector<RandomExchange> exchanges_;
};

}  // namespace

std::byte mark(int source, int destination, int64_t index, int exchange) {
  return static_cast<std::byte>((source * 7 + destination * 31 + index * 13 + index / 251 + exchange * 101) & 0xff);
}

std::unique_ptr<Stream> HostPlace::create_stream() { return std::make_unique<HostStream>(); }

Tensor HostPlace::make(DType dtype, Shape shape) {
  const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
  auto* memory = new std::byte[bytes + 1]();
  return Tensor(std::make_shared<Storage>(memory, bytes, Device{}, [memory] { delete[] memory; }), dtype, shape);
}

void HostPlace::write(const std::vector<std::byte>& bytes, const Tensor& tensor, Stream&) {
  std::copy(bytes.begin(), bytes.end(), tensor.raw());
}

std::vector<std::byte> HostPlace::read(const Tensor& tensor, Stream&) {
  return {tensor.raw(), tensor.raw() + tensor.size_bytes()};
}

void HostPlace::copy(const Tensor& source, const Tensor& destination, Stream&) {
  std::copy_n(source.raw(), source.size_bytes(), destination.raw());
}

namespace {

void check_all_but_groups(Communicator& communicator, TensorPlace& place) {
  const auto stream = place.create_stream();
  const Bench bench{communicator, place, *stream};
  check_identity(communicator);
  check_sizes_and_dtypes(bench);
  check_gather_in_place(bench);
  check_many_in_flight(bench);
  check_records(communicator);
  check_texts(communicator);
  check_errors_of_all(communicator);
  check_misuse(bench);
  communicator.barrier();
}

// Every second rank, and neighbours: groups keep the contract.
void check_groups(Communicator& communicator, TensorPlace& place) {
  const int rank = communicator.rank(), size = communicator.size();
  const auto check = [&](int color, int step, int members, int own) {
    const auto group = communicator.split(color, members);
    EXPECT_EQ(group->rank(), own);
    HostPlace host;  // the given place may be memory of all ranks together
    check_all_but_groups(*group, communicator.carries_device_memory() ? place : host);
    EXPECT_EQ(all_gather_records(*group, rank).back(), rank + (members - 1 - own) * step);
    communicator.barrier();  // beside the group's collectives
  };
  check(rank % 2, 2, (size + 1 - rank % 2) / 2, rank / 2);
  check(rank / 2, 1, std::min(2, size - rank / 2 * 2), rank % 2);
}

}  // namespace

void check_communicator_contract(Communicator& communicator, TensorPlace& place) {
  check_all_but_groups(communicator, place);
  check_groups(communicator, place);
}

void run_random_collectives(Communicator& communicator, TensorPlace& place, const RandomCollectives& options) {
  RandomRank(communicator, place, options).run();
}

}  // namespace mantissa::testing
