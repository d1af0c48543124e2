// The files that a verb reads, which a report must not replace.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/report/output_file.h"

namespace mantissa {

struct Config;

// The configuration (a run's folder is no file, and so no output either) and the texts that it names.
std::vector<NamedFile> files_read(const std::string& path, const Config& config);

}  // namespace mantissa
