#include "comm/local/local_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

namespace mantissa {
namespace {

enum class Kind : uint8_t { kAllToAll, kAllGather };
enum class Patience : uint8_t { kTest, kWait };

// The buffers of one rank in a collective.
struct Post {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::shared_ptr<const void> send_owner, receive_owner;  // a failing rank must not free buffers that others read
};

// The part of a collective on which all ranks must agree.
struct Description {
  Kind kind = Kind::kAllGather;
  size_t row_bytes = 0;
  bool operator==(const Description&) const = default;
};

std::string to_text(const Description& description) {
  return fmt::format("{} of {} bytes a row", description.kind == Kind::kAllToAll ? "all_to_all" : "all_gather",
                     description.row_bytes);
}

struct Collective {
  Description description;
  std::vector<Post> posts;  // by rank
  int posted = 0;
  bool done = false;
};

// The collectives of all ranks, numbered in the order of calls. Once a rank has failed, every call throws CommError.
class LocalBoard {
 public:
  // The board of a group fails with `job`, that of all ranks.
  explicit LocalBoard(int ranks, LocalBoard* job = nullptr) : ranks_(ranks), job_(job != nullptr ? job : this) {}

  // CommError for all ranks if they disagree on what collective `number` is.
  std::shared_ptr<Collective> post(uint64_t number, int rank, const Description& mine, Post post) {
    std::unique_lock lock(mutex_);
    throw_if_failed(rank, mine);
    std::shared_ptr<Collective>& open = open_[number];
    if (open == nullptr) open = std::make_shared<Collective>(mine, std::vector<Post>(static_cast<size_t>(ranks_)));
    if (!(open->description == mine)) {
      const std::string others = to_text(open->description);
      lock.unlock();
      fail(fmt::format("ranks disagree on collective {}: {} and {}", number, others, to_text(mine)));
      lock.lock();
      throw_if_failed(rank, mine);
    }
    open->posts[static_cast<size_t>(rank)] = std::move(post);
    const std::shared_ptr<Collective> collective = open;
    if (++collective->posted < ranks_) return collective;
    open_.erase(number);
    lock.unlock();
    copy_rows(*collective);
    lock.lock();
    collective->done = true;
    changed_.notify_all();
    return collective;
  }

  // Whether all ranks have posted and the rows are copied: buffers are free.
  bool is_done(const Collective& collective, int rank, Patience patience) {
    std::unique_lock lock(mutex_);
    if (patience == Patience::kWait) changed_.wait(lock, [&] { return collective.done || !failure_.empty(); });
    throw_if_failed(rank, collective.description);
    return collective.done;
  }

  // Fails for all ranks of the job.
  void fail(const std::string& reason) {
    if (job_ != this) return job_->fail(reason);
    const std::lock_guard lock(groups_mutex_);
    for (const auto& [key, group] : groups_) group->fail_here(reason);
    fail_here(reason);
  }

  // The board of a group of the job; its first rank to ask makes it. `split`: the board of the split communicator, and
  // the number of its split.
  std::shared_ptr<LocalBoard> group(std::pair<const LocalBoard*, uint64_t> split, int color, int ranks) {
    const std::lock_guard lock(job_->groups_mutex_);
    std::shared_ptr<LocalBoard>& group = job_->groups_[{split, color}];
    if (group == nullptr) {
      group = std::make_shared<LocalBoard>(ranks, job_);
      const std::lock_guard job_lock(job_->mutex_);
      group->failure_ = job_->failure_;
    }
    return group;
  }

 private:
  static void copy_rows(const Collective& collective) {
    const auto& [kind, bytes] = collective.description;
    if (bytes == 0) return;
    for (size_t rank = 0; rank < collective.posts.size(); ++rank) {
      const size_t row = kind == Kind::kAllToAll ? rank : 0;
      for (size_t source = 0; source < collective.posts.size(); ++source) {
        const std::byte* from = collective.posts[source].send + row * bytes;
        std::byte* to = collective.posts[rank].receive + source * bytes;
        if (from != to) std::memcpy(to, from, bytes);
      }
    }
  }

  void fail_here(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    fail_locked(reason);
  }

  void fail_locked(const std::string& reason) {
    if (failure_.empty()) failure_ = reason;
    changed_.notify_all();
  }

  void throw_if_failed(int rank, const Description& description) const {
    if (failure_.empty()) return;
    throw CommError(fmt::format("[local] rank {} of {}, {}: {}", rank, ranks_, to_text(description), failure_));
  }

  const int ranks_;
  LocalBoard* const job_;
  std::mutex groups_mutex_;  // of groups_, which only the job's board has
  std::map<std::pair<std::pair<const LocalBoard*, uint64_t>, int>, std::shared_ptr<LocalBoard>> groups_;
  std::mutex mutex_;  // of all below, and of the counts in collectives
  std::condition_variable changed_;
  std::map<uint64_t, std::shared_ptr<Collective>> open_;  // by number: not yet posted by all ranks
  std::string failure_;
};

class LocalWork : public Work {
 public:
  LocalWork(std::shared_ptr<LocalBoard> board, std::shared_ptr<Collective> collective, int rank)
      : board_(std::move(board)), collective_(std::move(collective)), rank_(rank) {}

  bool test() override { return done_ = done_ || board_->is_done(*collective_, rank_, Patience::kTest); }
  void wait() override { done_ = done_ || board_->is_done(*collective_, rank_, Patience::kWait); }

 private:
  std::shared_ptr<LocalBoard> board_;
  std::shared_ptr<Collective> collective_;
  int rank_;
  bool done_ = false;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalBoard> job, std::shared_ptr<LocalBoard> board, int rank, int ranks)
      : Communicator({.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks}),
        job_(std::move(job)),
        board_(std::move(board)) {}

  std::string name() const override { return "local"; }

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
  std::unique_ptr<Communicator> split(int color, int members) override {
    const std::vector<int> colors = all_gather_records(*this, color);
    MANTISSA_CHECK(std::ranges::count(colors, color) == members, "[split] color {} has {} ranks, expected {}", color,
                   std::ranges::count(colors, color), members);
    const auto place = static_cast<int>(std::count(colors.begin(), colors.begin() + rank(), color));
    return std::make_unique<LocalCommunicator>(job_, board_->group({board_.get(), splits_++}, color, members), place,
                                               members);
  }
  void abort(int exit_code) override {
    board_->fail(fmt::format("rank {} ended the job with code {}", rank(), exit_code));
  }

 private:
  static Post post_of(const Tensor& send, const Tensor& recv) {
    return {send.raw(), recv.raw(), std::make_shared<Tensor>(send), std::make_shared<Tensor>(recv)};
  }

  std::unique_ptr<Work> start(Kind kind, size_t row_bytes, Post post) {
    auto collective = board_->post(next_++, rank(), {.kind = kind, .row_bytes = row_bytes}, std::move(post));
    return std::make_unique<LocalWork>(board_, std::move(collective), rank());
  }

  std::shared_ptr<LocalBoard> job_, board_;
  uint64_t next_ = 0, splits_ = 0;
};

const bool kRegistered = register_communicator("local", {.create = [] { return LocalGroup(1).take(0); }});

}  // namespace

LocalGroup::LocalGroup(int ranks) {
  MANTISSA_CHECK(ranks > 0, "[local_group] the number of ranks must be positive, got {}", ranks);
  const auto board = std::make_shared<LocalBoard>(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    communicators_.push_back(std::make_unique<LocalCommunicator>(board, board, rank, ranks));
  }
}

void run_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  LocalGroup group(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto fail = [&](int rank) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
    group.rank(rank).abort(1);
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(group.rank(rank));
        } catch (...) {
          fail(rank);
        }
      });
    }
  } catch (...) {  // the system refuses a thread
    fail(0);
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace mantissa
