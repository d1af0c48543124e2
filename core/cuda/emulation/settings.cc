#include "core/cuda/emulation/settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/cuda/emulation/fault_text.h"

namespace mantissa::cuda::emulation {
namespace {

uint64_t initial_seed() {
  const char* text = std::getenv("MANTISSA_EMULATION_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

uint64_t current_seed = initial_seed();
std::vector<Site> wait_sites;
std::vector<Kernel> kernels_run;
Faults current_faults = faults_from_environment();  // last: may arrange for a report of the two above at exit

}  // namespace

bool Site::operator==(const Site& other) const {
  return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
}

std::string Site::text() const {
  const char* slash = std::strrchr(file, '/');
  return fmt::format("{}:{}", slash ? slash + 1 : file, line);
}

void set_seed(uint64_t seed) { current_seed = seed; }
uint64_t seed() { return current_seed; }

void set_faults(const Faults& faults) { current_faults = faults; }
const Faults& faults() { return current_faults; }

std::vector<Site> take_wait_sites() { return std::exchange(wait_sites, {}); }

void note_wait_site(const Site& site) {
  if (std::find(wait_sites.begin(), wait_sites.end(), site) == wait_sites.end()) wait_sites.push_back(site);
}

const std::vector<Kernel>& kernels() { return kernels_run; }

void note_kernel(const Kernel& kernel) {
  const auto found = std::find_if(kernels_run.begin(), kernels_run.end(),
                                  [&](const Kernel& other) { return other.name == kernel.name; });
  if (found == kernels_run.end()) {
    kernels_run.push_back(kernel);
  } else {
    found->shared_bytes = std::max(found->shared_bytes, kernel.shared_bytes);
    for (size_t i = 0; i < kernel.bounds.size(); ++i) found->bounds[i] = std::max(found->bounds[i], kernel.bounds[i]);
  }
}

}  // namespace mantissa::cuda::emulation
