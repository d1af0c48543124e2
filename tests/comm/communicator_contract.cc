#include "tests/comm/communicator_contract.h"

#include <gtest/gtest.h>

#include <deque>

namespace mantissa::testing {
namespace {

// Far above the size up to which MPI sends at once without waiting for the receiver (4 KiB to 64 KiB).
constexpr int64_t kLargeElements = 300'007;

class ImmediateStream : public Stream {
 public:
  std::unique_ptr<Event> record() override { return std::make_unique<Event>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

Tensor host_tensor(DType dtype, Shape shape) {
  const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
  auto* memory = new std::byte[bytes + 1]();
  return Tensor(std::make_shared<Storage>(memory, bytes, Device{}, [memory] { delete[] memory; }), dtype, shape);
}

// A byte that tells where it comes from, where it goes and which exchange it belongs to.
std::byte mark(int source, int destination, int64_t index, int exchange) {
  return static_cast<std::byte>((source * 7 + destination * 31 + index * 13 + index / 251 + exchange * 101) & 0xff);
}

void fill_row(const Tensor& tensor, int row, int rows, int source, int destination, int exchange) {
  const auto bytes = static_cast<int64_t>(tensor.size_bytes()) / rows;
  for (int64_t i = 0; i < bytes; ++i) tensor.raw()[row * bytes + i] = mark(source, destination, i, exchange);
}

void expect_row(const Tensor& tensor, int row, int rows, int source, int destination, int exchange) {
  const auto bytes = static_cast<int64_t>(tensor.size_bytes()) / rows;
  int64_t wrong = 0;
  for (int64_t i = 0; i < bytes; ++i) wrong += tensor.raw()[row * bytes + i] != mark(source, destination, i, exchange);
  EXPECT_EQ(wrong, 0) << "bytes of the row from rank " << source << " to " << destination << ", exchange " << exchange;
}

// One exchange of each kind that can be under way beside others.
struct Exchange {
  Communicator& communicator;
  int id;
  Tensor send, receive;
  std::unique_ptr<Work> work;

  void start_all_to_all(DType dtype, int64_t count, Stream& stream) {
    const int ranks = communicator.size();
    send = host_tensor(dtype, Shape{ranks, count});
    receive = host_tensor(dtype, Shape{ranks, count});
    for (int to = 0; to < ranks; ++to) fill_row(send, to, ranks, communicator.rank(), to, id);
    work = communicator.all_to_all(send, receive, stream);
  }
  void start_all_gather(DType dtype, int64_t count, Stream& stream) {
    send = host_tensor(dtype, Shape{count});
    receive = host_tensor(dtype, Shape{communicator.size(), count});
    fill_row(send, 0, 1, communicator.rank(), 0, id);
    work = communicator.all_gather(send, receive, stream);
  }
  void expect_all_to_all() const {
    const int ranks = communicator.size();
    for (int from = 0; from < ranks; ++from) expect_row(receive, from, ranks, from, communicator.rank(), id);
  }
  void expect_all_gather() const {
    for (int from = 0; from < communicator.size(); ++from) expect_row(receive, from, communicator.size(), from, 0, id);
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

void check_sizes_and_dtypes(Communicator& communicator, Stream& stream) {
  int id = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1003}, kLargeElements}) {
      Exchange scatter{communicator, ++id, {}, {}, {}};
      scatter.start_all_to_all(dtype, count, stream);
      scatter.work->wait();
      scatter.expect_all_to_all();
      Exchange gather{communicator, ++id, {}, {}, {}};
      gather.start_all_gather(dtype, count, stream);
      gather.work->wait();
      gather.expect_all_gather();
    }
  }
}

void check_gather_in_place(Communicator& communicator, Stream& stream) {
  const int ranks = communicator.size(), mine = communicator.rank();
  const Tensor all = host_tensor(DType::kF32, Shape{ranks, kLargeElements});
  fill_row(all, mine, ranks, mine, 0, 77);
  communicator.all_gather(all.slice(mine * kLargeElements, kLargeElements), all, stream)->wait();
  for (int from = 0; from < ranks; ++from) expect_row(all, from, ranks, from, 0, 77);
}

void check_broadcast(Communicator& communicator, Stream& stream) {
  for (int root = 0; root < communicator.size(); ++root) {
    for (const int64_t count : {int64_t{0}, int64_t{5}, kLargeElements}) {
      const Tensor data = host_tensor(DType::kBF16, Shape{count});
      if (communicator.rank() == root) fill_row(data, 0, 1, root, root, 5);
      communicator.broadcast(data, root, stream)->wait();
      expect_row(data, 0, 1, root, root, 5);
    }
  }
}

// Several collectives under way at once, finished in the opposite order and partly by test() alone.
void check_many_in_flight(Communicator& communicator, Stream& stream) {
  std::deque<Exchange> exchanges;
  for (int id = 0; id < 10; ++id) {
    Exchange& exchange = exchanges.emplace_back(communicator, 200 + id, Tensor{}, Tensor{}, nullptr);
    const int64_t count = id % 3 == 0 ? kLargeElements : 17 * id;
    if (id % 2 == 0) {
      exchange.start_all_to_all(DType::kBF16, count, stream);
    } else {
      exchange.start_all_gather(DType::kF32, count, stream);
    }
    if (id == 4) communicator.barrier();
  }
  while (!exchanges.front().work->test()) {
  }
  for (int id = 9; id >= 0; --id) {
    Exchange& exchange = exchanges[static_cast<size_t>(id)];
    exchange.work->wait();
    exchange.work->wait();  // done work stays done
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

// Refused before anything is sent, so that no rank waits.
void check_misuse(Communicator& communicator, Stream& stream) {
  const int ranks = communicator.size();
  const Tensor rows = host_tensor(DType::kF32, Shape{ranks, 8});
  const Tensor more_rows = host_tensor(DType::kF32, Shape{ranks + 1, 8});
  const Tensor row = host_tensor(DType::kF32, Shape{8}), short_row = host_tensor(DType::kF32, Shape{7});
  const Tensor low_row = host_tensor(DType::kBF16, Shape{8});
  EXPECT_THROW(communicator.all_to_all(more_rows, more_rows, stream), ContractError);
  EXPECT_THROW(communicator.all_to_all(rows, host_tensor(DType::kBF16, Shape{ranks, 8}), stream), ContractError);
  EXPECT_THROW(communicator.all_gather(short_row, rows, stream), ContractError);
  EXPECT_THROW(communicator.all_gather(low_row, rows, stream), ContractError);
  EXPECT_THROW(communicator.all_gather(Tensor(), rows, stream), ContractError);
  EXPECT_THROW(communicator.broadcast(row, ranks, stream), ContractError);
}

}  // namespace

void check_communicator_contract(Communicator& communicator) {
  ImmediateStream stream;
  check_identity(communicator);
  check_sizes_and_dtypes(communicator, stream);
  check_gather_in_place(communicator, stream);
  check_broadcast(communicator, stream);
  check_many_in_flight(communicator, stream);
  check_records(communicator);
  check_misuse(communicator, stream);
  communicator.barrier();
}

}  // namespace mantissa::testing
