#include "comm/local/local_communicator.h"

#include "comm/local/local_board.h"
#include "comm/registry.h"

namespace mantissa {
namespace {

using local::Kind;
using local::LocalBoard;
using local::Patience;
using local::Post;

Post post_of(const Tensor& send, const Tensor& receive) {
  return {send.raw(), receive.raw(), std::make_shared<Tensor>(send), std::make_shared<Tensor>(receive)};
}

class LocalWork : public Work {
 public:
  LocalWork(std::shared_ptr<LocalBoard> board, uint64_t number, int rank)
      : board_(std::move(board)), number_(number), rank_(rank) {}

  bool test() override { return done_ = done_ || board_->advance(number_, rank_, copied_, Patience::kTest); }
  void wait() override { done_ = done_ || board_->advance(number_, rank_, copied_, Patience::kWait); }

 private:
  std::shared_ptr<LocalBoard> board_;
  uint64_t number_;
  int rank_;
  bool copied_ = false, done_ = false;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalBoard> board, int rank) : board_(std::move(board)), rank_(rank) {}

  std::string name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return board_->ranks(); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_to_all(send, recv, size());
    return start(Kind::kAllToAll, recv.size_bytes() / static_cast<size_t>(size()), post_of(send, recv));
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream&) override {
    check_all_gather(send, recv, size());
    return start(Kind::kAllGather, send.size_bytes(), post_of(send, recv));
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    const auto send = std::make_shared<std::vector<std::byte>>(mine.begin(), mine.end());
    const auto all = std::make_shared<std::vector<std::byte>>(mine.size() * static_cast<size_t>(size()));
    start(Kind::kAllGather, mine.size(), {send->data(), all->data(), send, all})->wait();
    return std::move(*all);
  }
  void barrier() override { all_gather_bytes({}); }
  void abort(int exit_code) override {
    board_->fail(fmt::format("rank {} ended the job with code {}", rank_, exit_code));
  }

 private:
  std::unique_ptr<Work> start(Kind kind, size_t row_bytes, Post post) {
    const uint64_t number = next_++;
    board_->post(number, rank_, {.kind = kind, .row_bytes = row_bytes}, std::move(post));
    return std::make_unique<LocalWork>(board_, number, rank_);
  }

  std::shared_ptr<LocalBoard> board_;
  int rank_;
  uint64_t next_ = 0;
};

const bool kRegistered = register_communicator("local", {.create = [] { return LocalGroup(1).take(0); }});

}  // namespace

LocalGroup::LocalGroup(int ranks) {
  MANTISSA_CHECK(ranks > 0, "[local_group] the number of ranks must be positive, got {}", ranks);
  const auto board = std::make_shared<LocalBoard>(ranks);
  for (int rank = 0; rank < ranks; ++rank) communicators_.push_back(std::make_unique<LocalCommunicator>(board, rank));
}

LocalGroup::~LocalGroup() = default;

}  // namespace mantissa
