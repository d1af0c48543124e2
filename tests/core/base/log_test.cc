// The log file beside standard error.
#include "core/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>

#include "core/base/process.h"

namespace mantissa {
namespace {

std::string fresh_path(const std::string& name) {
  std::string path = ::testing::TempDir() + "/log_test_" + name;
  std::filesystem::remove_all(path);
  return path;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Logs in a process of its own: the log file is one for each process. Returns the exit code.
int in_a_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const std::string kTime = "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3} ";

// The standard error of `body` where that is a console or, else, a pipe.
std::string error_output(bool is_console, const std::function<void()>& body) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(is_console ? openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) : pipe(ends), 0);
  in_a_process([&] {
    dup2(ends[1], STDERR_FILENO);
    body();
    return 0;
  });
  close(ends[1]);
  std::string text;
  char letter = 0;
  while (read(ends[0], &letter, 1) == 1) text += letter == '\r' ? "" : std::string(1, letter);
  close(ends[0]);
  return text;
}

TEST(Log, OnAConsoleWarningsAndErrorsFit) {
  const std::string path = "/" + std::string(150, 'p'), words = std::string(60, 'a') + " " + std::string(60, 'b');
  const auto log_lines = [&] {
    start_logging(0, 1);
    log_error("{}", words);
    log_warn("{} is not there", path);
    log_info("{}", words);
  };
  const std::string whole = "error: " + words + "\nwarning: " + path + " is not there\n" + words + "\n";
  EXPECT_EQ(error_output(false, log_lines), whole);
  const std::string fits = "error: " + std::string(60, 'a') + "\n  " + std::string(60, 'b') + "\nwarning:\n  " + path +
                           "\n  is not there\n" + words + "\n";
  EXPECT_EQ(error_output(true, log_lines), fits);
}

// A rank, a child of mpirun, writes to a pipe of it: what counts is where mpirun's own errors go.
TEST(Log, UnderMpirunErrorsFitWhereTheyEndOnAConsole) {
  const std::string words = std::string(60, 'a') + " " + std::string(60, 'b');
  const auto launch = [&](bool is_launched) {
    const int ends = dup(STDERR_FILENO);
    int rank[2] = {-1, -1};
    EXPECT_EQ(pipe(rank), 0);
    in_a_process([&] {
      // NOLINTBEGIN(concurrency-mt-unsafe): in a process of one thread
      for (const char* const name : {"PMIX_NAMESPACE", "PMIX_RANK"})
        is_launched ? setenv(name, "1", 1) : unsetenv(name);
      // NOLINTEND(concurrency-mt-unsafe)
      dup2(rank[1], STDERR_FILENO);
      start_logging(0, 2);
      log_error("{}", words);
      return 0;
    });
    close(rank[1]);
    char letter = 0;
    while (read(rank[0], &letter, 1) == 1) EXPECT_EQ(write(ends, &letter, 1), 1);
  };
  const std::string whole = "error: [rank 0] " + words + "\n";
  const std::string fits = "error: [rank 0] " + std::string(60, 'a') + "\n  " + std::string(60, 'b') + "\n";
  EXPECT_EQ(error_output(true, [&] { launch(true); }), fits);
  EXPECT_EQ(error_output(false, [&] { launch(true); }), whole) << "of a file or a pipe";
  EXPECT_EQ(error_output(true, [&] { launch(false); }), whole) << "a pipe of the shell";
}

TEST(LogFile, HasTimeHostJobAndRank) {
  const std::string path = fresh_path("lines");
  std::ofstream(path) << "an earlier start\n";
  in_a_process([&] {
    setenv("SLURM_JOB_ID", "1234", 1);
    start_logging(0, 4);
    log_warn("before the file");
    log_to_file(path, "start: program");
    log_info("a table:\n  row");
    log_debug("not logged");
    log_error("broken");
    return 0;
  });
  const std::string start = kTime + host_name() + " \\[job 1234\\] ";
  const std::string text = text_of(path);
  EXPECT_TRUE(std::regex_match(text, std::regex("an earlier start\n" + start + "start: program\n" + start +
                                                "\\[rank 0\\] warning: before the file\n" + start +
                                                "a table:\n  row\n" + start + "\\[rank 0\\] error: broken\n")))
      << text;
}

TEST(LogFile, AnotherRankWritesItsWarningsOnly) {
  const std::string path = fresh_path("rank");
  in_a_process([&] {
    unsetenv("SLURM_JOB_ID");
    start_logging(2, 4);
    log_to_file(path, "");
    log_info("information");
    log_warn("text");
    return 0;
  });
  const std::string text = text_of(path);
  EXPECT_TRUE(std::regex_match(text, std::regex(kTime + host_name() + " \\[rank 2\\] warning: text\n"))) << text;
}

TEST(LogFile, DoesNotFollowALink) {
  const std::string link = fresh_path("link"), target = fresh_path("target");
  std::ofstream(target) << "kept";
  using Link = void (*)(const std::filesystem::path&, const std::filesystem::path&);
  for (const Link make : {Link(std::filesystem::create_symlink), Link(std::filesystem::create_hard_link)}) {
    std::filesystem::remove(link);
    make(target, link);
    const int warnings = in_a_process([&] {
      log_to_file(link, "start: program");
      log_info("line");
      return static_cast<int>(logged_warnings());
    });
    EXPECT_EQ(warnings, 1);
    EXPECT_EQ(text_of(target), "kept");
  }
}

TEST(LogFile, AFailedWriteIsOneWarning) {
  const std::string path = fresh_path("full");
  const int warnings = in_a_process([&] {
    (void)std::signal(SIGXFSZ, SIG_IGN);
    log_to_file(path, "start: program");
    const rlimit limit{.rlim_cur = 100, .rlim_max = 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int line = 0; line < 10; ++line) log_info("a line that takes space, number {}", line);
    return static_cast<int>(logged_warnings());
  });
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(std::filesystem::file_size(path), 100u);
}

TEST(LogFile, ARemovedFileIsOneWarning) {
  const std::string path = fresh_path("removed");
  const int warnings = in_a_process([&] {
    log_to_file(path, "start: program");
    std::filesystem::remove(path);
    for (int line = 0; line < 10; ++line) log_info("line");
    return static_cast<int>(logged_warnings());
  });
  EXPECT_EQ(warnings, 1);
}

// The message of a watchdog must not wait there as well.
TEST(LogFile, HasALineThatNobodyReadsOnStandardError) {
  const std::string path = fresh_path("unread");
  const pid_t child = fork();
  if (child == 0) {
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(1);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::string filling(4096, 'x');
    while (write(ends[1], filling.data(), filling.size()) > 0) continue;
    fcntl(ends[1], F_SETFL, 0);
    start_logging(0, 1);
    log_to_file(path, "start: program");
    log_warn("line");
    _exit(0);
  }
  for (int tries = 0; tries < 500 && text_of(path).find("warning: line") == std::string::npos; ++tries) usleep(10'000);
  EXPECT_NE(text_of(path).find("warning: line"), std::string::npos);
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it waits";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(LogFile, AFolderOrAPipeIsRefused) {
  const std::string folder = fresh_path("folder"), pipe = fresh_path("pipe");
  std::filesystem::create_directory(folder);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int warnings = in_a_process([&] {
    log_to_file(folder, "");
    log_to_file(pipe, "");
    return static_cast<int>(logged_warnings());
  });
  EXPECT_EQ(warnings, 2);
}

}  // namespace
}  // namespace mantissa
