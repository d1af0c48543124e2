// Deadline: ends the process when what it guards does not end. For calls that nothing can interrupt and that all else
// waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace mantissa {

class Deadline {
 public:
  // If the object still lives after `limit`, logs `message` and ends the process with ExitCode::kComm at once: exit
  // handlers and destructors would wait for the call as well.
  Deadline(std::chrono::milliseconds limit, const std::string& message);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_met_ = false;
  std::thread thread_;
};

}  // namespace mantissa
