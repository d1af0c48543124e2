// A folder or file that appears under its name once it is complete.
#pragma once

#include <cstdint>
#include <string>

namespace mantissa {

class PendingOutput {
 public:
  enum class Kind : uint8_t { kFolder, kFile };

  // No user gives such a name: an output with this suffix is left over from a killed program, and is removed.
  static constexpr const char* kSuffix = ".mantissa-partial";

  // Makes the folder NAME.mantissa-partial; a file of that name is left to the caller. ConfigError if something of this
  // name is there that is no empty folder, if the name is empty, or if the folder cannot be made.
  PendingOutput(Kind kind, std::string name);
  // Removes what is partial unless finish() was called.
  ~PendingOutput();
  PendingOutput(const PendingOutput&) = delete;
  PendingOutput& operator=(const PendingOutput&) = delete;

  const std::string& partial() const { return partial_; }
  // Gives it its name. ConfigError if it cannot.
  void finish();

 private:
  std::string name_, partial_;
  bool is_finished_ = false;
};

}  // namespace mantissa
