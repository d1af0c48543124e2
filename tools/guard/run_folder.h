// The folder of a run, held by one job at a time.
#pragma once

#include <string>

#include "tools/config/config.h"

namespace mantissa {

// Rank 0 has one.
class RunFolder {
 public:
  // Makes the folder and locks it until the object goes. ConfigError when it cannot be written, or another job holds
  // it.
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Replaces config.yaml by the resolved settings, at once: a reader sees the old file or the new one.
  void write_config(const Config& config) const;

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace mantissa
