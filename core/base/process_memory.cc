#include "core/base/process_memory.h"

#include <fstream>
#include <string>

namespace mantissa {
namespace {

// The value of a line of /proc/self/status such as "VmHWM:   123456 kB", in bytes; 0 if there is no such line.
size_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == key) {
      size_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace

size_t resident_bytes() { return status_bytes("VmRSS:"); }
size_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

}  // namespace mantissa
