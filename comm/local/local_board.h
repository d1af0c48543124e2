// LocalBoard: where ranks that are threads of one process post their collectives and meet.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mantissa::local {

enum class Kind : uint8_t { kAllToAll, kAllGather };

// What one rank brings to a collective.
struct Post {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::shared_ptr<const void> send_owner, receive_owner;  // a rank that fails must not free what others still read
};

// What all ranks must agree on.
struct Description {
  Kind kind = Kind::kAllGather;
  size_t row_bytes = 0;
  bool operator==(const Description&) const = default;
};

enum class Patience : uint8_t { kTest, kWait };

// Collectives are numbered in the order in which each rank calls them. Once a rank has failed, every call of every rank
// throws CommError.
class LocalBoard {
 public:
  explicit LocalBoard(int ranks) : ranks_(ranks) {}

  int ranks() const { return ranks_; }
  // CommError for all ranks if they disagree on what collective `number` is.
  void post(uint64_t number, int rank, const Description& mine, Post post);
  // Copies the rows that `rank` receives, once all have posted. True when all ranks have copied, so that all buffers
  // are free: then the collective is over for this rank, and it must not ask again. `copied` keeps its progress between
  // calls.
  bool advance(uint64_t number, int rank, bool& copied, Patience patience);
  void fail(const std::string& reason);

 private:
  struct Collective {
    Description description;
    std::vector<Post> posts;  // by rank
    int posted = 0, copied = 0, left = 0;
  };

  static void copy_rows(const Collective& collective, int rank);
  void fail_locked(const std::string& reason);
  void throw_if_failed(int rank, const Description& description) const;

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Collective> collectives_;  // under way
  std::string failure_;
};

}  // namespace mantissa::local
