#include "tools/run/guard/black_box.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "comm/local/local_communicator.h"
#include "comm/staged/staged_communicator.h"
#include "core/backend/registry.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/io/files.h"
#include "tests/program/program.h"

namespace mantissa {
namespace {

using Kind = BlackBoxEvent::Kind;

// Runs `body` in a process of its own, which a signal ends without a core; returns waitpid()'s status.
int status_of_box_user(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (const int number : {SIGSEGV, SIGABRT, SIGBUS}) std::signal(number, SIG_DFL);  // sanitizers exit at them
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

std::vector<std::string> descriptions(const BlackBoxContent& content) {
  std::vector<std::string> result;
  for (const BlackBoxEvent& event : content.events) {
    result.push_back(std::to_string(event.step) + " " + describe_event(event));
  }
  return result;
}

TEST(BlackBox, KeepsEventsOfAProcessThatIsKilled) {
  const std::string folder = testing::fresh_folder("killed");
  const int status = status_of_box_user([&] {
    BlackBox box(folder, 3, 8);
    box.set_step(41);
    const Range phase(RangeKind::kPhase, "reduce");
    box.begin_collective("all_to_all", 4096);
    kill(getpid(), SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  const BlackBoxContent content = read_black_box(folder + "/rank-0003.box");
  EXPECT_EQ(descriptions(content), (std::vector<std::string>{"41 the start of phase reduce",
                                                             "41 the start of collective 1 (all_to_all, 4096 bytes)"}));
  EXPECT_EQ(content.header.rank, 3);
  EXPECT_EQ(content.header.ranks, 8);
  EXPECT_EQ(content.header.exit_code, BlackBoxHeader::kRunning);
  EXPECT_GT(content.events[0].unix_ns, content.header.started_unix_ns);
}

TEST(BlackBox, NamesTheSignalThatEndsTheProcess) {
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS}) {
    const std::string folder = testing::fresh_folder("signal" + std::to_string(number));
    const int status = status_of_box_user([&] {
      BlackBox box(folder, 0, 1);
      raise(number);
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    const BlackBoxContent content = read_black_box(BlackBox::path(folder, 0));
    EXPECT_EQ(std::string(content.header.error.data()), std::string("SIG") + sigabbrev_np(number));
    EXPECT_EQ(content.header.exit_code, 128 + number);
  }
}

TEST(BlackBox, SaysThatItsOutputWasNotRead) {
  const std::string folder = testing::fresh_folder("unread");
  const int status = status_of_box_user([&] {
    std::signal(SIGPIPE, SIG_DFL);
    const BlackBox box(folder, 0, 1);
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(1);
    close(ends[0]);
    _exit(write(STDERR_FILENO, "line\n", 5) < 0 ? 2 : 3);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
  const BlackBoxHeader header = read_black_box(BlackBox::path(folder, 0)).header;
  EXPECT_STREQ(header.error.data(), "its output was not read (SIGPIPE)");
  EXPECT_EQ(header.exit_code, 128 + SIGPIPE);
}

TEST(BlackBox, AnIgnoredSignalStaysIgnored) {
  const std::string folder = testing::fresh_folder("ignored");
  const int status = status_of_box_user([&] {
    std::signal(SIGPIPE, SIG_IGN);
    const BlackBox box(folder, 0, 1);
    raise(SIGPIPE);
  });
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(read_black_box(BlackBox::path(folder, 0)).header.exit_code, BlackBoxHeader::kRunning);
}

TEST(BlackBox, GoesOnWhenItsFileIsTruncated) {
  const std::string folder = testing::fresh_folder("truncated");
  constexpr uint64_t kEvents = 300;  // more than fit into what is left
  for (const uintmax_t size : {uintmax_t{0}, uintmax_t{5000}}) {
    BlackBox box(folder, 0, 1);
    const int64_t warnings = logged_warnings();
    std::filesystem::resize_file(BlackBox::path(folder, 0), size);
    for (uint64_t i = 0; i < kEvents; ++i) box.note(Kind::kStep, "step", 2.5);
    box.lives();
    box.failed("an error");
    box.ended(3);
    EXPECT_EQ(box.place().events, kEvents);
    EXPECT_EQ(logged_warnings(), warnings + 1) << "it says it once";
    EXPECT_THROW(read_black_box(BlackBox::path(folder, 0)), DataError);
  }
}

TEST(BlackBox, NoticesThatItsFileIsRemovedOrReplaced) {
  const std::string folder = testing::fresh_folder("replaced"), path = BlackBox::path(folder, 0);
  for (const bool is_replaced : {false, true}) {
    BlackBox box(folder, 0, 1);
    const int64_t warnings = logged_warnings();
    box.lives();
    box.note(Kind::kStep, "step", 2.5);
    EXPECT_EQ(logged_warnings(), warnings) << "it is there";
    if (is_replaced) {
      std::filesystem::copy_file(path, path + ".copy");
      std::filesystem::rename(path + ".copy", path);
    } else {
      std::filesystem::remove(path);
    }
    box.lives();
    box.note(Kind::kStep, "step", 2.5);
    EXPECT_EQ(logged_warnings(), warnings + 1) << is_replaced;
  }
}

TEST(BlackBox, NamesAMappedFileThatIsTruncated) {
  const std::string folder = testing::fresh_folder("lost_data"), data = folder + "/weights";
  testing::write_file(data, std::string(100'000, 'x'));
  const int status = status_of_box_user([&] {
    report_lost_pages();
    const BlackBox box(folder, 0, 1);
    const MappedFile file(data);
    std::filesystem::resize_file(data, 0);
    const volatile std::byte last = file.bytes().back();
    static_cast<void>(last);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::kData)) << status;
  const BlackBoxHeader header = read_black_box(BlackBox::path(folder, 0)).header;
  const std::string error(text_of(header.error));
  EXPECT_NE(error.find("/weights: cannot read the file: truncated while it is in use"), std::string::npos) << error;
  EXPECT_EQ(header.exit_code, static_cast<int>(ExitCode::kData));
}

int deeper(int depth) {  // NOLINT(misc-no-recursion): fills the stack
  std::array<char, 4096> memory{};
  volatile char* const first = memory.data();
  *first = static_cast<char>(depth);
  return depth == std::numeric_limits<int>::max() ? 0 : deeper(depth + 1) + *first;
}

TEST(BlackBox, NamesTheSignalOfAFullStack) {
  const std::string folder = testing::fresh_folder("full_stack");
  const int status = status_of_box_user([&] {
    const BlackBox box(folder, 0, 1);
    deeper(0);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_STREQ(read_black_box(BlackBox::path(folder, 0)).header.error.data(), "SIGSEGV");
}

TEST(BlackBox, HoldsTheNewestEvents) {
  const std::string folder = testing::fresh_folder("newest");
  const uint64_t count = BlackBox::kCapacity + 100;
  {
    BlackBox box(folder, 0, 1);
    for (uint64_t i = 1; i <= count; ++i)
      box.note(Kind::kStep, "a name that is longer than its place", static_cast<double>(i));
    box.failed("first\nmessage");
    box.failed("second message");
    box.ended(6);
  }
  const BlackBoxContent content = read_black_box(BlackBox::path(folder, 0));
  ASSERT_EQ(content.events.size(), BlackBox::kCapacity);
  EXPECT_EQ(content.events.front().number, count - BlackBox::kCapacity + 1);
  EXPECT_EQ(content.events.back().number, count);
  EXPECT_EQ(content.events.back().value, static_cast<double>(count));
  EXPECT_EQ(name_of(content.events.back()), "a name that is longer t");
  EXPECT_STREQ(content.header.error.data(), "first\nmessage");
  EXPECT_EQ(content.header.exit_code, 6);
}

TEST(BlackBox, AStartKeepsTheBoxOfTheOneBefore) {
  const std::string folder = testing::fresh_folder("previous");
  for (int exit_code : {5, 75}) BlackBox(folder, 0, 1).ended(exit_code);
  EXPECT_EQ(read_black_box(folder + "/rank-0000.previous.box").header.exit_code, 5);
  EXPECT_EQ(read_black_box(BlackBox::path(folder, 0)).header.exit_code, 75);
}

TEST(BlackBox, WorksInMemoryWhereNoFileCanBeMade) {
  const std::string folder = testing::fresh_folder("no_place");
  std::ofstream(folder + "/file") << "in the way";
  BlackBox box(folder + "/file", 0, 1);
  box.note(Kind::kValidation, "still counted");
  EXPECT_EQ(box.place().events, 1u);
}

TEST(BlackBox, DoesNotWriteThroughALink) {
  const std::string folder = testing::fresh_folder("link");
  std::ofstream(folder + "/precious") << "kept";
  std::filesystem::create_symlink(folder + "/precious", BlackBox::path(folder, 0));
  BlackBox box(folder, 0, 1);
  EXPECT_EQ(std::filesystem::file_size(folder + "/precious"), 4u);
}

TEST(BlackBox, KnowsThePlaceOfItsThread) {
  BlackBox box(testing::fresh_folder("place"), 0, 1);
  EXPECT_STREQ(box.place().phase, "start");
  EXPECT_LT(box.place().longest_quiet_s, 0.0);
  box.set_step(1);
  EXPECT_GE(box.place().longest_quiet_s, 0.0) << "The start ends with the first step.";
  {
    const Range step(RangeKind::kPhase, "step");
    {
      const Range reduce(RangeKind::kPhase, "reduce");
      EXPECT_STREQ(box.place().phase, "reduce");
      EXPECT_LT(box.place().longest_quiet_s, 0.0) << "It has not ended yet.";
      std::thread([] { const Range other(RangeKind::kPhase, "of another thread"); }).join();
      const Range op(RangeKind::kOp, "gemm");
      EXPECT_STREQ(box.place().phase, "reduce");
      box.note(Kind::kValidation, "an event");
      EXPECT_LT(box.place().longest_quiet_s, 0.0) << "It has not ended yet.";
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    EXPECT_STREQ(box.place().phase, "step");
    const Range again(RangeKind::kPhase, "reduce");
    EXPECT_GE(box.place().longest_quiet_s, 0.03);
  }
  const Place place = box.place();
  EXPECT_STREQ(place.phase, "start");
  EXPECT_EQ(place.events, 7u);
}

// Also below a communicator that carries the tensors of a device.
class BlackBoxUnder : public ::testing::TestWithParam<const char*> {};

TEST_P(BlackBoxUnder, TellsWaitsFromWorkBesideACollective) {
  const std::string folder = testing::fresh_folder("collectives");
  std::atomic<bool> has_left = false;
  std::atomic<const BlackBox*> first = nullptr;
  run_ranks(2, [&](Communicator& local) {
    BlackBox box(folder, local.rank(), 2);
    if (local.rank() == 0) first = &box;
    const auto watched = create_watched_communicator(local, box);
    const auto backend = create_backend("cpu");
    const auto staged = create_staged_communicator(*watched, *backend);
    Communicator& used = GetParam() == std::string_view("staged") ? *staged : *watched;
    used.barrier();
    EXPECT_EQ(box.place().begun, 1u);
    EXPECT_EQ(box.place().awaited, 0u);
    std::array<std::byte, 8> mine{};
    std::array<std::byte, 16> all{};
    const auto bytes = [](auto& memory) {
      return std::make_shared<Storage>(memory.data(), memory.size(), Device{}, nullptr);
    };
    HostStream stream;
    while (local.rank() == 1 && !(has_left && first.load()->place().awaited == 2)) std::this_thread::yield();
    const auto work =
        used.all_gather(Tensor(bytes(mine), DType::kU8, {8}), Tensor(bytes(all), DType::kU8, {2, 8}), stream);
    EXPECT_EQ(box.place().begun, 2u);
    if (local.rank() == 0) {
      EXPECT_EQ(box.place().awaited, 0u);
      EXPECT_FALSE(work->test());
      EXPECT_EQ(box.place().awaited, 0u);
      has_left = true;
    }
    work->wait();
    work->wait();
    EXPECT_EQ(box.place().awaited, 0u);
    local.barrier();
  });
  std::vector<Kind> kinds;
  for (const BlackBoxEvent& event : read_black_box(BlackBox::path(folder, 0)).events) {
    if (event.value == 2.0) kinds.push_back(event.kind);
  }
  EXPECT_EQ(kinds, (std::vector{Kind::kCollectiveBegins, Kind::kCollectiveLeft, Kind::kCollectiveAwaited,
                                Kind::kCollectiveEnds}));
}

INSTANTIATE_TEST_SUITE_P(Transports, BlackBoxUnder, ::testing::Values("none", "staged"),
                         [](const auto& info) { return std::string(info.param); });

TEST(BlackBox, ADamagedFileIsRefused) {
  const std::string folder = testing::fresh_folder("damaged"), path = BlackBox::path(folder, 0);
  { BlackBox(folder, 0, 1).note(Kind::kValidation, "x"); }
  EXPECT_EQ(read_black_box(path).events.size(), 1u);
  std::filesystem::resize_file(path, 5000);
  EXPECT_THROW(read_black_box(path), DataError);
  std::ofstream(path) << "something else";
  EXPECT_THROW(read_black_box(path), DataError);
  EXPECT_THROW(read_black_box(folder + "/none"), DataError);
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(read_black_box(path), DataError) << "A pipe is not waited for.";
}

}  // namespace
}  // namespace mantissa
