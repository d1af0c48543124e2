// A folder that appears under its name once it is complete.
#pragma once

#include <string>

namespace mantissa {

class OutputFolder {
 public:
  // Makes the folder NAME.partial. ConfigError if something of this name is there that is no empty folder, or if the
  // folder cannot be made.
  explicit OutputFolder(std::string name);
  // Removes the partial folder unless finish() was called.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& partial() const { return partial_; }
  // Gives the folder its name. CheckpointError if it cannot.
  void finish();

 private:
  std::string name_, partial_;
  bool is_finished_ = false;
};

}  // namespace mantissa
