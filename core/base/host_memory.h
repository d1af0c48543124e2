// The memory of this machine, for messages about too little of it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace mantissa {

inline constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// Settings that need less memory, for a message.
inline constexpr const char* kLessMemory =
    "Lower train.micro_batch or model sizes, give train.recompute=full, or use more ranks";

struct HostMemory {
  uint64_t total_bytes = 0;  // of the machine, with swap, or what the limits of this job or process leave of it
  uint64_t free_bytes = 0;   // that a process may still get without swap; at most total_bytes
};
HostMemory host_memory();            // figures that the system does not give are the largest number
std::string describe_host_memory();  // "2048.0 of 15990.5 MiB of host memory are free"

// The value of a line such as "VmHWM:   123456 kB" of a file in /proc, in bytes.
uint64_t proc_bytes(const std::string& path, const std::string& key, uint64_t otherwise);

// The exception's text. For std::bad_alloc, whose text says nothing: the free memory, and settings that need less.
std::string message_of(const std::exception& exception);

}  // namespace mantissa
