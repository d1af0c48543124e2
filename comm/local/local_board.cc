#include "comm/local/local_board.h"

#include <fmt/core.h>

#include <cstring>

#include "core/base/error.h"

namespace mantissa::local {
namespace {

std::string to_text(const Description& description) {
  constexpr const char* kNames[] = {"all_to_all", "all_gather"};
  return fmt::format("{} of {} bytes a row", kNames[static_cast<size_t>(description.kind)], description.row_bytes);
}

}  // namespace

void LocalBoard::post(uint64_t number, int rank, const Description& mine, Post post) {
  const std::lock_guard lock(mutex_);
  throw_if_failed(rank, mine);
  Collective& collective = collectives_[number];
  if (collective.posted == 0) {
    collective.description = mine;
    collective.posts.resize(static_cast<size_t>(ranks_));
  }
  if (!(collective.description == mine)) {
    fail_locked(fmt::format("ranks disagree on collective {}: {} and {}", number, to_text(collective.description),
                            to_text(mine)));
    throw_if_failed(rank, mine);
  }
  collective.posts[static_cast<size_t>(rank)] = std::move(post);
  ++collective.posted;
  changed_.notify_all();
}

bool LocalBoard::advance(uint64_t number, int rank, bool& copied, Patience patience) {
  std::unique_lock lock(mutex_);
  Collective& collective = collectives_.at(number);
  const auto all_have = [&](const int& count) {
    const auto settled = [&] { return count == ranks_ || !failure_.empty(); };
    if (patience == Patience::kWait) changed_.wait(lock, settled);
    throw_if_failed(rank, collective.description);
    return count == ranks_;
  };
  if (!all_have(collective.posted)) return false;
  if (!copied) {
    lock.unlock();
    copy_rows(collective, rank);
    lock.lock();
    copied = true;
    ++collective.copied;
    changed_.notify_all();
  }
  if (!all_have(collective.copied)) return false;
  if (++collective.left == ranks_) collectives_.erase(number);
  return true;
}

void LocalBoard::copy_rows(const Collective& collective, int rank) {
  const auto& [kind, bytes] = collective.description;
  const std::vector<Post>& posts = collective.posts;
  std::byte* receive = posts[static_cast<size_t>(rank)].receive;
  if (bytes == 0) return;
  const size_t row = kind == Kind::kAllToAll ? static_cast<size_t>(rank) : 0;
  for (size_t source = 0; source < posts.size(); ++source) {
    const std::byte* from = posts[source].send + row * bytes;
    if (from != receive + source * bytes) std::memcpy(receive + source * bytes, from, bytes);
  }
}

void LocalBoard::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail_locked(reason);
}

void LocalBoard::fail_locked(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  changed_.notify_all();
}

void LocalBoard::throw_if_failed(int rank, const Description& description) const {
  if (failure_.empty()) return;
  throw CommError(fmt::format("[local] rank {} of {}, {}: {}", rank, ranks_, to_text(description), failure_));
}

}  // namespace mantissa::local
