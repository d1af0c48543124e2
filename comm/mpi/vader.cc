#include "comm/mpi/vader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "core/base/launcher.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa {
namespace {

// vader's files of one user.
using Segments = std::map<std::pair<dev_t, ino_t>, std::filesystem::path>;

Segments segments_of_user(const std::string& folder) {
  Segments found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    struct stat status {};
    if (!entry.path().filename().string().starts_with("vader_segment.")) continue;
    if (lstat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (status.st_uid == geteuid()) found.emplace(std::pair(status.st_dev, status.st_ino), entry.path());
  }
  return found;
}

bool read_line(FILE* file, std::string& line) {
  line.clear();
  for (int c = std::fgetc(file); c != EOF && c != '\n'; c = std::fgetc(file)) line += static_cast<char>(c);
  return !line.empty();
}

// The process that made a segment, from the header that OpenMPI 4 writes: a lock, and the number.
pid_t creator_of(const std::string& path) {
  std::array<int32_t, 2> header{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(header.data()), sizeof(header));
  return header[1];
}

// Takes the segments that a process uses off `segments`.
void leave_out_used(pid_t process, Segments& segments) {
  // Descriptors first: whoever makes or attaches a segment closes its descriptor after the file is mapped.
  const std::string folder = fmt::format("/proc/{}", process);
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder + "/fd", error), end; !error && file != end;
       file.increment(error)) {
    struct stat status {};
    if (stat(file->path().c_str(), &status) == 0) segments.erase({status.st_dev, status.st_ino});
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen((folder + "/maps").c_str(), "re"), &std::fclose);
  if (maps == nullptr && errno != EACCES && errno != EPERM) return;  // it has ended
  if (maps == nullptr) {  // such as sshd's. If it is a rank all the same, then one that made a segment
    std::erase_if(segments, [&](const auto& segment) { return creator_of(segment.second) == process; });
    return;
  }
  for (std::string line; read_line(maps.get(), line);) {
    std::erase_if(segments, [&](const auto& segment) {
      return line.find(fmt::format(" {} ", segment.first.second)) != std::string::npos &&
             line.find(segment.second.filename().string()) != std::string::npos;
    });
  }
}

}  // namespace

void leave_vader_out_of_foreign_namespaces() {
  if (!find_launcher().is_outside) return;
  const std::string chosen = environment_variable("OMPI_MCA_btl");
  if (!chosen.empty() && !chosen.starts_with('^')) return;  // the user's own list
  const std::string others = chosen.empty() ? "" : "," + chosen.substr(1);
  setenv("OMPI_MCA_btl", ("^vader" + others).c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no threads yet
  const std::string local_rank = environment_variable("OMPI_COMM_WORLD_LOCAL_RANK");
  if (!local_rank.empty() && local_rank != "0") return;
  log_warn(
      "mpirun is outside of this rank's PID namespace (a container for each rank?). OpenMPI's shared memory fails\n"
      "  there and is left out (btl ^vader): the ranks of this node use TCP, which is slower");
}

LeftSegments remove_left_segments(const std::string& folder) {
  constexpr ino_t kFirstNamespace = 0xEFFFFFFC;  // PROC_PID_INIT_INO of Linux
  LeftSegments removed;
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) != 0 || space.st_ino != kFirstNamespace) return removed;
  Segments segments = segments_of_user(folder);
  if (segments.empty()) return removed;
  std::error_code error;
  for (std::filesystem::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const int number = std::atoi(process->path().filename().c_str());  // 0 for other folders
    if (number > 0) leave_out_used(number, segments);
  }
  if (error) return removed;
  for (const auto& [file, path] : segments) {
    struct stat status {};
    if (lstat(path.c_str(), &status) != 0 || status.st_ino != file.second || unlink(path.c_str()) != 0) continue;
    ++removed.files;
    removed.bytes += static_cast<size_t>(status.st_blocks) * 512;
  }
  return removed;
}

}  // namespace mantissa
