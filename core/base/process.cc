#include "core/base/process.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace mantissa {
namespace {

std::string& name_of_program() {
  static std::string name = "mantissa";
  return name;
}

}  // namespace

const std::string& program_name() { return name_of_program(); }
void name_program(std::string name) { name_of_program() = std::move(name); }

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string slurm_job() { return environment_variable("SLURM_JOB_ID"); }

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  return value == nullptr ? "" : value;
}

}  // namespace mantissa
