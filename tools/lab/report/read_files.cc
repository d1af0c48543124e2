#include "tools/lab/report/read_files.h"

#include "core/io/files.h"
#include "tools/config/config.h"

namespace mantissa {

std::vector<NamedFile> files_read(const std::string& path, const Config& config) {
  std::vector<NamedFile> files = {{"the configuration", path}};
  const auto add = [&files](const char* setting, const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) {
      for (const std::string& file : expand_glob(pattern)) files.push_back({setting, file});
    }
  };
  add("data.train", config.data.train);
  add("data.validation", config.data.validation);
  return files;
}

}  // namespace mantissa
