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

  // Replaces config.yaml by the resolved settings, as_kept(), at once: a reader sees the old file or the new one.
  void write_config(const Config& config);

  // Where somebody has removed the folder that was locked: makes it, unless somebody has, locks it, writes its
  // config.yaml and warns, once for each time. CheckpointError when it cannot be written, or another job has begun in
  // it.
  void ensure_held();

 private:
  bool is_still_there() const;
  void hold();
  void release();
  void write_config_text() const;

  std::string path_, config_;  // its text, once it is written
  int folder_ = -1, lock_ = -1;
};

}  // namespace mantissa
