#include "core/base/host_memory.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>

namespace mantissa {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// The only word of a file, a number; kUnknown for "max".
uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : kUnknown;
}

struct Limit {
  uint64_t bytes = kUnknown, used_bytes = 0;
};

// The memory limit of the control group: as a container mounts it, version 2 or 1, or of the group of a job.
Limit group_limit() {
  std::string group;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  Limit tightest;
  const auto look = [&](const std::string& limit, const std::string& used) {
    const uint64_t bytes = number_in(limit);
    if (bytes >= tightest.bytes) return;
    const uint64_t now = number_in(used);
    tightest = {.bytes = bytes, .used_bytes = now == kUnknown ? 0 : now};
  };
  const std::string root = "/sys/fs/cgroup";
  while (true) {
    look(root + group + "/memory.max", root + group + "/memory.current");
    if (group.empty()) break;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  look(root + "/memory/memory.limit_in_bytes", root + "/memory/memory.usage_in_bytes");
  return tightest;
}

Limit process_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return {.bytes = limit.rlim_cur, .used_bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))};
}

double as_mib(uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

}  // namespace

uint64_t proc_bytes(const std::string& path, const std::string& key, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return otherwise;
}

HostMemory host_memory() {
  const auto bytes_of = [](const char* key, uint64_t otherwise) { return proc_bytes("/proc/meminfo", key, otherwise); };
  HostMemory memory{.total_bytes = bytes_of("MemTotal:", kUnknown), .free_bytes = bytes_of("MemAvailable:", kUnknown)};
  if (memory.total_bytes != kUnknown) memory.total_bytes += bytes_of("SwapTotal:", 0);
  for (const Limit& limit : {group_limit(), process_limit()}) {
    memory.total_bytes = std::min(memory.total_bytes, limit.bytes);
    memory.free_bytes = std::min(memory.free_bytes, limit.bytes - std::min(limit.bytes, limit.used_bytes));
  }
  return memory;
}

std::string describe_host_memory() {
  const HostMemory memory = host_memory();
  if (memory.total_bytes == kUnknown || memory.free_bytes == kUnknown) return "The free host memory is not known";
  return fmt::format("{:.1f} of {:.1f} MiB of host memory are free", as_mib(memory.free_bytes),
                     as_mib(memory.total_bytes));
}

std::string message_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) == nullptr) return exception.what();
  return fmt::format("host memory is short: the system refused a request. {}. {}", describe_host_memory(), kLessMemory);
}

}  // namespace mantissa
