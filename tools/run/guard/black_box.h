// BlackBox: the last events of a rank, in a memory-mapped file that survives the death of the process.
// `mantissa postmortem` reads the files of all ranks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/profile/range.h"

namespace mantissa {

class Communicator;

inline constexpr const char* kBlackBoxFolder = "/black_box";  // of the run folder

struct BlackBoxEvent {
  enum class Kind : uint8_t {
    kPhaseBegins,        // name: the phase
    kPhaseEnds,          // name: the phase
    kCollectiveBegins,   // name; value: its number; bytes: this rank's contribution; the rank waits in it
    kCollectiveEnds,     // name; value: its number
    kStep,               // value: the loss; bytes: memory of the process; the step is done
    kSkipped,            // name: the reason; value: the loss scale
    kValidation,         // value: the loss
    kSaved,              // a checkpoint of the step
    kStopAsked,          // value: of StopRequest::describe()
    kFault,              // name: a fault on purpose that strikes
    kNotice,             // name: "rollback", value: the step that it left; "slow rank" or "slow link": rank or node
    kCollectiveLeft,     // name; value: its number; the rank works while messages travel
    kCollectiveAwaited,  // name; value: its number; the rank waits in it again
  };

  uint64_t number = 0;  // from 1; 0: empty, or being written when the process died
  int64_t unix_ns = 0;  // wall-clock time
  int64_t step = 0;     // from 1; 0: before the first
  double value = 0.0;
  int64_t bytes = 0;
  Kind kind = Kind::kPhaseBegins;
  std::array<char, 23> name{};  // ends with a zero unless it is full
};
static_assert(sizeof(BlackBoxEvent) == 64);

// The text in an array that ends with a zero unless it is full.
template <size_t kSize>
std::string_view text_of(const std::array<char, kSize>& array) {
  return {array.data(), strnlen(array.data(), kSize)};
}

std::string_view name_of(const BlackBoxEvent& event);
// "the start of phase reduce", "the end of collective 212 (all_to_all, 1048576 bytes)"
std::string describe_event(const BlackBoxEvent& event);

// The header of the file; its events follow.
struct BlackBoxHeader {
  static constexpr std::array<char, 8> kMagic = {'M', 'T', 'B', 'O', 'X', '0', '0', '2'};
  static constexpr int32_t kRunning = -1;

  std::array<char, 8> magic = kMagic;
  uint64_t capacity = 0;  // events
  int32_t rank = 0, ranks = 1;
  int64_t pid = 0;
  int64_t started_unix_ns = 0;
  int64_t ended_unix_ns = 0;
  int64_t alive_unix_ns = 0;  // the last sign of life of the watchdog's thread; 0: none
  int32_t exit_code = kRunning;
  int32_t output_unread = 0;           // 1: it stood still, and nobody read its standard output or error
  std::array<char, 64> host{}, job{};  // job: SLURM_JOB_ID, or empty
  std::array<char, 1024> error{};      // the message with which the rank ended
};
static_assert(sizeof(BlackBoxHeader) == 1216);

// Where the thread that trains is. The watchdog compares two of them.
struct Place {
  uint64_t events = 0;  // so far
  int64_t step = 0;
  const char* phase = "start";  // the innermost
  uint64_t begun = 0;           // collectives
  uint64_t awaited = 0;         // the number of the collective in which it waits; 0: it works
  const char* collective = "";  // its name
  // The longest time that this phase has let pass between two events; negative: it has not ended once.
  double longest_quiet_s = -1.0;
};

// begin(), end() and note() cost some 50 ns, and may be called by any thread; only ranges of the thread that made the
// object are recorded. The first object of a process is its current box, which receives ranges and fatal signals. Where
// ranks are threads, the other boxes have only the events noted to them. A box whose file is truncated, or lost with
// its file system, goes on in memory after a warning.
class BlackBox final : public RangeSink {
 public:
  static constexpr uint64_t kCapacity = 4096;

  // Makes FOLDER/rank-0003.box; the file of an earlier start becomes rank-0003.previous.box. Without a folder, and
  // after a warning if the file cannot be made, events are kept in memory only.
  BlackBox(const std::string& folder, int rank, int ranks);
  ~BlackBox() override;

  void begin(RangeKind kind, const char* name) override;
  void end(RangeKind kind, const char* name) override;
  void note(BlackBoxEvent::Kind kind, std::string_view name, double value = 0.0, int64_t bytes = 0);
  // Steps are counted from 1. Later events belong to this one.
  void set_step(int64_t step) {
    step_.store(step, std::memory_order_relaxed);
    phases_[0].has_ended.store(true, std::memory_order_relaxed);  // the start
  }
  // Returns the number of the collective, from 1. `name` has static storage. The rank waits in it until it leaves it,
  // for work of its own, or the collective ends.
  uint64_t begin_collective(const char* name, int64_t bytes);
  void leave_collective(const char* name, uint64_t number);
  void await_collective(const char* name, uint64_t number);
  void end_collective(const char* name, uint64_t number);
  // Seconds so far in phases of these names, without waits and without phases nested in them.
  template <size_t kCount>
  std::array<double, kCount> work_seconds(const std::array<std::string_view, kCount>& names) const {
    std::array<double, kCount> seconds{};
    for (size_t i = 0; i < kCount; ++i) seconds[i] = work_seconds(names[i]);
    return seconds;
  }
  // Heartbeat. Its time shows which ranks died before the job's end killed the rest.
  void lives();
  // Notes whether nobody reads standard output or error, so that the rank stands still where it writes a line.
  void look_at_output();
  // How the rank ends. The first message stays.
  void failed(std::string_view message);
  void ended(int exit_code);

  // For the handler of SIGBUS. Whether the address is in the box, or in SQLite's index of the probes, which SQLite
  // makes anew where it is empty: the file is lost, and memory takes its place.
  bool replaces_page_at(void* address);

  Place place() const;
  static std::string path(const std::string& folder, int rank);
  // The current box; nullptr if there is none.
  static BlackBox* current();

 private:
  struct Phase {
    std::atomic<const char*> name = nullptr;
    std::atomic<int64_t> longest_quiet_ns = 0;
    std::atomic<bool> has_ended = false;
    int64_t work_ns = 0;  // owner's thread only
  };

  void say_what_is_lost();
  void record(BlackBoxEvent::Kind kind, std::string_view name, double value, int64_t bytes);
  Phase& phase_named(const char* name);
  // Adds the time since the last call to the innermost phase, unless it was a wait.
  void count_work(int64_t now_ns);
  void set_awaited(const char* name, uint64_t number);
  double work_seconds(std::string_view name) const;

  const std::thread::id owner_ = std::this_thread::get_id();
  const std::string file_;
  uint64_t device_ = 0, inode_ = 0;  // of the file: another one of its name is not this object's
  static constexpr int kBox = 1, kIndex = 2;
  std::atomic<int> lost_ = 0;            // of these files
  int said_ = 0;                         // in warnings; owner's thread only
  const size_t page_bytes_;              // of the system's memory
  std::vector<std::byte> signal_stack_;  // a full stack has no room for the handler of the signal that says so
  RangeSink* before_ = nullptr;
  BlackBoxHeader* header_ = nullptr;
  BlackBoxEvent* events_ = nullptr;
  std::atomic<uint64_t> recorded_ = 0;
  std::atomic<int64_t> step_ = 0;
  std::atomic<const char*> collective_ = "";
  std::atomic<uint64_t> begun_ = 0, awaited_ = 0;
  // Phases by name, in the order in which they first began; the last entry stands for all others.
  std::array<Phase, 16> phases_;
  std::array<Phase*, 16> open_{};
  std::atomic<int> depth_ = 0;  // of open_; deeper phases count as that of the last entry
  std::atomic<Phase*> innermost_;
  // Monotonic; owner's thread only.
  int64_t last_event_ns_ = 0, counted_ns_ = 0;
};

// Notes in the box when each collective begins and ends, and when this rank waits in it: tensor collectives end when a
// test or a wait finds them done. Both must outlive it.
std::unique_ptr<Communicator> create_watched_communicator(Communicator& communicator, BlackBox& box);

// The content of a file of a BlackBox, which may still be written to.
struct BlackBoxContent {
  BlackBoxHeader header;
  std::vector<BlackBoxEvent> events;  // oldest first
};
// DataError if the file cannot be read or is none.
BlackBoxContent read_black_box(const std::string& path);
// That of a rank; nothing if it cannot be read.
std::optional<BlackBoxContent> find_black_box(const std::string& folder, int rank);

}  // namespace mantissa
