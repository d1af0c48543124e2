#include "core/base/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

namespace mantissa {
namespace {

std::string& name_of_program() {
  static std::string name = "mantissa";
  return name;
}

// Empty if the file cannot be read.
std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The words of a line of /proc/PID/status: of "NSpid:\t4711\t2", these are "4711" and "2".
std::vector<std::string> status_words(const std::string& status, const std::string& key) {
  const size_t at = status.find("\n" + key + ":\t");
  if (at == std::string::npos) return {};
  std::istringstream line(status.substr(at, status.find('\n', at + 1) - at));
  std::string word;
  line >> word;  // the key
  std::vector<std::string> words;
  while (line >> word) words.push_back(word);
  return words;
}

// Whether the environment, as /proc shows it, has this entry.
bool has_entry(const std::string& environment, const std::string& entry) {
  const std::string before("\0", 1);
  return (before + environment).find(before + entry + before) != std::string::npos;
}

}  // namespace

const std::string& program_name() { return name_of_program(); }
void name_program(std::string name) { name_of_program() = std::move(name); }

std::string program_file() {
  const auto here = reinterpret_cast<uintptr_t>(&program_file);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char* end = nullptr;
    const uintptr_t begin = std::strtoull(line.c_str(), &end, 16);
    if (here < begin || *end != '-' || here >= std::strtoull(end + 1, nullptr, 16)) continue;
    const size_t path = line.find('/');
    return path == std::string::npos ? "" : line.substr(path);
  }
  return "";
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string why_not_to_write(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type == fs::file_type::symlink) return "it is a symbolic link, which is not followed to write";
  if (type != fs::file_type::regular) return type == fs::file_type::not_found ? "" : "it is not a regular file";
  return fs::hard_link_count(path, ignored) > 1 ? "it has a second name, a hard link; remove it here" : "";
}

std::string slurm_job() { return environment_variable("SLURM_JOB_ID"); }

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Launcher find_launcher() {
  const std::string job = "PMIX_NAMESPACE=" + environment_variable("PMIX_NAMESPACE");
  const std::string rank = "PMIX_RANK=" + environment_variable("PMIX_RANK");
  if (job.ends_with('=') || rank.ends_with('=')) return {};
  std::string status = text_of("/proc/self/status");
  if (status.empty()) return {.is_outside = getppid() == 0};
  // Seen from an outer namespace, /proc shows a number for each namespace between there and the process.
  const size_t depth = status_words(status, "NSpid").size();
  while (true) {
    const std::vector<std::string> parent = status_words(status, "PPid");
    if (parent.empty()) return {};
    if (parent[0] == "0") return {.is_outside = true};
    const std::string process = "/proc/" + parent[0];
    status = text_of(process + "/status");
    if (status.empty()) return {};
    if (status_words(status, "NSpid").size() < depth) return {.is_outside = true};
    const std::string environment = text_of(process + "/environ");
    if (has_entry(environment, job) && has_entry(environment, rank)) continue;
    std::string name = text_of(process + "/comm");
    name = name.substr(0, name.find('\n'));
    return {.process = depth == 1 ? std::atoi(parent[0].c_str()) : 0, .name = std::move(name)};
  }
}

void end_launcher_that_hangs() {
  constexpr std::array kNames = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted"};
  const Launcher launcher = find_launcher();
  if (launcher.process <= 1 || std::find(kNames.begin(), kNames.end(), launcher.name) == kNames.end()) return;
  // A shell: a copy of this process would keep its memory. It ends with the launcher, and gives up without a `sleep`.
  std::string script = fmt::format(
      "i=0; while kill -0 {0} && [ $i -lt {1} ]; do sleep 1 || exit; i=$((i + 1)); done 2>/dev/null; kill -9 {0}",
      launcher.process, kLauncherPatienceSeconds);
  std::string shell = "/bin/sh", option = "-c";
  std::array<char*, 4> arguments = {shell.data(), option.data(), script.data(), nullptr};
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
  if (posix_spawnattr_init(&attributes) != 0) return;
  // In a session of its own, mpirun does not count it among the processes of the rank. It must not keep pipes open.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  if (posix_spawn_file_actions_init(&files) == 0) {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&files, descriptor, "/dev/null", O_RDWR, 0);
    }
    pid_t child = 0;
    posix_spawn(&child, shell.c_str(), &files, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
  }
  posix_spawnattr_destroy(&attributes);
}

}  // namespace mantissa
