#include "tools/run/guard/black_box.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/io/files.h"
#include "tools/run/guard/stop_request.h"

namespace mantissa {
namespace {

constexpr size_t kSignalStackBytes = 64 * 1024;
constexpr size_t kBytes = sizeof(BlackBoxHeader) + BlackBox::kCapacity * sizeof(BlackBoxEvent);

int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

template <size_t kSize>
void assign(std::array<char, kSize>& target, std::string_view text) {
  const size_t length = std::min(text.size(), kSize);
  std::memcpy(target.data(), text.data(), length);
  if (length < kSize) target[length] = '\0';
}

// The map of a new file; MAP_FAILED after a warning.
void* map_file(const std::string& file) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
  const std::filesystem::path previous = std::filesystem::path(file).replace_extension(".previous.box");
  std::filesystem::remove(previous, ignored);  // else two names of one file would stay
  std::filesystem::rename(file, previous, ignored);
  const int descriptor = open(file.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
  // Without its blocks, writing to the map of a full file system ends the process by SIGBUS.
  int error = descriptor < 0 ? errno : posix_fallocate(descriptor, 0, kBytes);
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (descriptor >= 0) close(descriptor);
  if (error == 0) return memory;
  if (descriptor >= 0) unlink(file.c_str());
  log_warn("no black box of this rank: '{}': {}; training goes on without it", file,
           std::generic_category().message(error));
  return MAP_FAILED;
}

// ---- Signals that end the process: the box says so before it goes.

constexpr NamedSignal kFatal[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGABRT, "SIGABRT"},
                                  {SIGFPE, "SIGFPE"},   {SIGILL, "SIGILL"}, {SIGPIPE, "SIGPIPE"}};
std::array<struct sigaction, std::size(kFatal)> g_fatal_actions_before;
std::atomic<BlackBox*> g_box = nullptr;  // the first where ranks are threads, as in tests

// Standard output and error by poll(): 0 for a pipe or terminal that takes no more, POLLERR for a pipe without a
// reader.
std::array<int, 2> output_states() {
  std::array<pollfd, 2> outputs{};
  outputs[0] = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  outputs[1] = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(outputs.data(), outputs.size(), 0) < 0) return {POLLOUT, POLLOUT};
  return {outputs[0].revents, outputs[1].revents};
}

void on_fatal_signal(int number, siginfo_t* info, void* /*context*/) {
  const bool is_lost_page = number == SIGBUS && info->si_code == BUS_ADRERR;
  const auto* const signal = std::ranges::find(kFatal, number, &NamedSignal::number);
  if (BlackBox* const box = g_box) {
    if (is_lost_page && box->replaces_page_at(info->si_addr)) return;
    LostPageText buffer;
    const std::string_view lost = is_lost_page ? lost_page_error(info->si_addr, buffer) : std::string_view();
    const std::array<int, 2> outputs = output_states();
    const bool is_unread = number == SIGPIPE && ((outputs[0] | outputs[1]) & POLLERR) != 0;
    box->failed(!lost.empty() ? lost : is_unread ? "its output was not read (SIGPIPE)" : signal->name);
    box->ended(lost.empty() ? 128 + number : static_cast<int>(ExitCode::kData));
  }
  // Returning repeats a fault, and the earlier action answers it. A signal that was sent does not come again.
  sigaction(number, &g_fatal_actions_before[static_cast<size_t>(signal - kFatal)], nullptr);
  if (info->si_code <= 0) raise(number);
}

}  // namespace

std::string_view name_of(const BlackBoxEvent& event) { return text_of(event.name); }

std::string describe_event(const BlackBoxEvent& event) {
  static constexpr const char* kTexts[] = {"the start of phase {name}",
                                           "the end of phase {name}",
                                           "the start of collective {value:.0f} ({name}, {bytes} bytes)",
                                           "the end of collective {value:.0f} ({name})",
                                           "a step with loss {value:.4f}",
                                           "a skipped step ({name}), at scale {value:g}",
                                           "a validation loss of {value:.4f}",
                                           "a checkpoint",
                                           "a request to stop ({request})",
                                           "the fault {name}",
                                           "a notice: {name} {value:.0f}",
                                           "work beside collective {value:.0f} ({name})",
                                           "the wait for collective {value:.0f} ({name})"};
  const auto kind = static_cast<size_t>(event.kind);
  const bool asks = event.kind == BlackBoxEvent::Kind::kStopAsked;
  return fmt::format(fmt::runtime(kind < std::size(kTexts) ? kTexts[kind] : "{name}"), fmt::arg("name", name_of(event)),
                     fmt::arg("value", event.value), fmt::arg("bytes", event.bytes),
                     fmt::arg("request", asks ? StopRequest::describe(static_cast<int32_t>(event.value)) : ""));
}

std::string BlackBox::path(const std::string& folder, int rank) {
  return fmt::format("{}/rank-{:04}.box", folder, rank);
}

BlackBox* BlackBox::current() { return g_box; }

BlackBox::BlackBox(const std::string& folder, int rank, int ranks)
    : file_(path(folder, rank)),
      page_bytes_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
      signal_stack_(kSignalStackBytes) {
  void* memory = folder.empty() ? MAP_FAILED : map_file(file_);
  if (memory == MAP_FAILED) {
    lost_ = said_ = kBox;
    memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
  }
  if (struct stat made{}; stat(file_.c_str(), &made) == 0) {
    device_ = made.st_dev;
    inode_ = made.st_ino;
  }
  header_ = new (memory) BlackBoxHeader;
  events_ = reinterpret_cast<BlackBoxEvent*>(header_ + 1);
  header_->capacity = kCapacity;
  header_->rank = rank;
  header_->ranks = ranks;
  header_->pid = getpid();
  header_->started_unix_ns = nanoseconds(CLOCK_REALTIME);
  assign(header_->host, host_name());
  assign(header_->job, slurm_job());
  phases_[0].name = "start";
  innermost_ = &phases_[0];
  last_event_ns_ = counted_ns_ = nanoseconds(CLOCK_MONOTONIC);
  BlackBox* none = nullptr;
  if (!g_box.compare_exchange_strong(none, this)) return;
  before_ = set_range_sink(this);
  const stack_t stack{.ss_sp = signal_stack_.data(), .ss_flags = 0, .ss_size = signal_stack_.size()};
  sigaltstack(&stack, nullptr);
  for (size_t i = 0; i < std::size(kFatal); ++i) {
    struct sigaction action {};
    action.sa_sigaction = on_fatal_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    struct sigaction& before = g_fatal_actions_before[i];
    sigaction(kFatal[i].number, &action, &before);
    const bool ends_process = kFatal[i].number != SIGPIPE || before.sa_handler == SIG_DFL;
    if (!ends_process) sigaction(SIGPIPE, &before, nullptr);  // somebody ignores or handles it
  }
}

BlackBox::~BlackBox() {
  if (g_box == this) {
    for (size_t i = 0; i < std::size(kFatal); ++i) sigaction(kFatal[i].number, &g_fatal_actions_before[i], nullptr);
    g_box = nullptr;
    const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
    set_range_sink(before_);
  }
  munmap(header_, kBytes);
}

void BlackBox::record(BlackBoxEvent::Kind kind, std::string_view name, double value, int64_t bytes) {
  const uint64_t index = recorded_.fetch_add(1, std::memory_order_relaxed);
  BlackBoxEvent& event = events_[index % kCapacity];
  std::atomic_ref number(event.number);
  number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  event.unix_ns = nanoseconds(CLOCK_REALTIME);
  event.step = step_.load(std::memory_order_relaxed);
  event.value = value;
  event.bytes = bytes;
  event.kind = kind;
  assign(event.name, name);
  number.store(index + 1, std::memory_order_release);
}

BlackBox::Phase& BlackBox::phase_named(const char* name) {
  for (Phase& phase : phases_) {
    if (phase.name == name) return phase;
    if (phase.name == nullptr) {
      phase.name = name;
      return phase;
    }
  }
  return phases_.back();
}

void BlackBox::note(BlackBoxEvent::Kind kind, std::string_view name, double value, int64_t bytes) {
  record(kind, name, value, bytes);
  if (std::this_thread::get_id() != owner_) return;
  if (lost_.load(std::memory_order_relaxed) != said_) [[unlikely]]
    say_what_is_lost();
  const int64_t now = nanoseconds(CLOCK_MONOTONIC), quiet = now - std::exchange(last_event_ns_, now);
  count_work(now);
  std::atomic<int64_t>& longest = innermost_.load(std::memory_order_relaxed)->longest_quiet_ns;
  if (quiet > longest.load(std::memory_order_relaxed)) longest.store(quiet, std::memory_order_relaxed);
}

void BlackBox::begin(RangeKind kind, const char* name) {
  if (before_ != nullptr) before_->begin(kind, name);
  if (kind != RangeKind::kPhase || std::this_thread::get_id() != owner_) return;
  note(BlackBoxEvent::Kind::kPhaseBegins, name);
  const auto depth = static_cast<size_t>(depth_++);
  if (depth >= open_.size()) return;
  open_[depth] = innermost_;
  innermost_ = &phase_named(name);
}

void BlackBox::end(RangeKind kind, const char* name) {
  if (before_ != nullptr) before_->end(kind, name);
  if (kind != RangeKind::kPhase || std::this_thread::get_id() != owner_) return;
  note(BlackBoxEvent::Kind::kPhaseEnds, name);
  innermost_.load()->has_ended = true;
  if (depth_ == 0) return;  // it began before this object
  const auto depth = static_cast<size_t>(--depth_);
  if (depth < open_.size()) innermost_ = open_[depth];
}

uint64_t BlackBox::begin_collective(const char* name, int64_t bytes) {
  const uint64_t number = ++begun_;
  note(BlackBoxEvent::Kind::kCollectiveBegins, name, static_cast<double>(number), bytes);
  set_awaited(name, number);
  return number;
}

void BlackBox::leave_collective(const char* name, uint64_t number) {
  note(BlackBoxEvent::Kind::kCollectiveLeft, name, static_cast<double>(number));
  set_awaited("", 0);
}

void BlackBox::await_collective(const char* name, uint64_t number) {
  note(BlackBoxEvent::Kind::kCollectiveAwaited, name, static_cast<double>(number));
  set_awaited(name, number);
}

void BlackBox::end_collective(const char* name, uint64_t number) {
  note(BlackBoxEvent::Kind::kCollectiveEnds, name, static_cast<double>(number));
  if (awaited_ == number) set_awaited("", 0);
}

void BlackBox::set_awaited(const char* name, uint64_t number) {
  collective_ = name;
  awaited_ = number;
}

void BlackBox::count_work(int64_t now_ns) {
  const int64_t time = now_ns - std::exchange(counted_ns_, now_ns);
  if (awaited_ == 0) innermost_.load(std::memory_order_relaxed)->work_ns += time;
}

double BlackBox::work_seconds(std::string_view name) const {
  double seconds = 0.0;
  for (const Phase& phase : phases_) {  // one name may have several addresses
    const char* const other = phase.name;
    if (other != nullptr && other == name) seconds += 1e-9 * static_cast<double>(phase.work_ns);
  }
  return seconds;
}

bool BlackBox::replaces_page_at(void* address) {
  const auto byte = reinterpret_cast<uintptr_t>(address), begin = reinterpret_cast<uintptr_t>(header_);
  const bool is_mine = begin <= byte && byte < begin + kBytes;
  LostPageText buffer;
  if (!is_mine && lost_page_error(address, buffer).find("/probes.mtp-shm: ") == std::string_view::npos) return false;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  void* const page = is_mine ? static_cast<void*>(header_) : static_cast<std::byte*>(address) - byte % page_bytes_;
  if (mmap(page, is_mine ? kBytes : page_bytes_, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) return false;
  lost_ |= is_mine ? kBox : kIndex;
  return true;
}

void BlackBox::say_what_is_lost() {
  const int news = lost_ & ~said_;
  said_ |= news;
  constexpr const char* kText =
      "{} was removed, replaced or truncated, or its file system lost it; training goes on without it";
  if ((news & kBox) != 0) log_warn(kText, fmt::format("the black box '{}'", file_));
  if ((news & kIndex) != 0) log_warn(kText, "the file probes.mtp-shm");
}

void BlackBox::lives() {
  header_->alive_unix_ns = nanoseconds(CLOCK_REALTIME);
  struct stat there {};
  const bool is_there = stat(file_.c_str(), &there) == 0 && there.st_dev == device_ && there.st_ino == inode_;
  if (!is_there) lost_ |= kBox;
}

void BlackBox::look_at_output() { header_->output_unread = std::ranges::count(output_states(), 0) > 0 ? 1 : 0; }

void BlackBox::failed(std::string_view message) {
  if (header_->error[0] == '\0') assign(header_->error, message.substr(0, header_->error.size() - 1));
}

void BlackBox::ended(int exit_code) {
  header_->exit_code = exit_code;
  header_->ended_unix_ns = nanoseconds(CLOCK_REALTIME);
}

Place BlackBox::place() const {
  const Phase& phase = *innermost_.load();
  return {.events = recorded_,
          .step = step_,
          .phase = phase.name,
          .begun = begun_,
          .awaited = awaited_,
          .collective = collective_,
          .longest_quiet_s = phase.has_ended ? 1e-9 * static_cast<double>(phase.longest_quiet_ns) : -1.0};
}

BlackBoxContent read_black_box(const std::string& path) {
  const std::string file = text_of_file(path).value_or("");
  BlackBoxContent content;
  const bool has_header = file.size() >= sizeof(content.header);
  if (has_header) std::memcpy(&content.header, file.data(), sizeof(content.header));
  if (!has_header || content.header.magic != BlackBoxHeader::kMagic || content.header.capacity != BlackBox::kCapacity) {
    throw DataError("'{}' is not a black box of this version of the program, or cannot be read", path);
  }
  if (file.size() < kBytes) throw DataError("'{}' is cut off: expected {} bytes", path, kBytes);
  std::vector<BlackBoxEvent> ring(content.header.capacity);
  std::memcpy(ring.data(), file.data() + sizeof(content.header), ring.size() * sizeof(BlackBoxEvent));
  for (size_t place = 0; place < ring.size(); ++place) {
    const uint64_t number = ring[place].number;
    if (number != 0 && (number - 1) % ring.size() == place) content.events.push_back(ring[place]);
  }
  std::ranges::sort(content.events, {}, &BlackBoxEvent::number);
  return content;
}

std::optional<BlackBoxContent> find_black_box(const std::string& folder, int rank) {
  try {
    return read_black_box(BlackBox::path(folder, rank));
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace mantissa
