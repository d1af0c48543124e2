#include "core/cuda/emulation/faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace mantissa::cuda::emulation {
namespace {

void write_report() {
  std::ofstream report(std::getenv("MANTISSA_EMULATION_REPORT"));
  for (const Site& site : take_wait_sites()) report << fmt::format("wait {}:{}\n", site.file, site.line);
  for (const Kernel& kernel : kernels()) {
    const std::string bounds = kernel.bounds.empty() ? "none" : fmt::format("{}", fmt::join(kernel.bounds, ","));
    report << fmt::format("kernel {} {} {}\n", bounds, kernel.shared_bytes, kernel.name);
  }
}

// The rest of the line, which must not be empty.
std::string rest_of(std::istream& in) {
  std::string rest;
  std::getline(in >> std::ws, rest);
  if (rest.empty()) in.setstate(std::ios::failbit);
  return rest;
}

// The fault in the environment, if any. Also schedules the report.
Faults faults_from_environment() {
  if (std::getenv("MANTISSA_EMULATION_REPORT") != nullptr) std::atexit(write_report);
  const char* const text = std::getenv("MANTISSA_EMULATION_FAULT");
  if (text == nullptr) return {};
  try {
    return parse_fault(text);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(kBadFaultExit);  // before main(): nothing could catch an exception
  }
}

uint64_t initial_seed() {
  const char* text = std::getenv("MANTISSA_EMULATION_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

uint64_t current_seed = initial_seed();
std::vector<Site> wait_sites;
std::vector<Kernel> kernels_run;
// Last, because it may schedule a report of the two above at exit.
Faults current_faults = faults_from_environment();

// Removes "<...>" and all but the last part of qualified names.
std::string shortened(const std::string& types) {
  std::string result;
  size_t name_begins = 0;
  int depth = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    const char c = types[i];
    if (c == '<') ++depth;
    if (depth == 0) {
      if (types.compare(i, 2, "::") == 0) {
        result.resize(name_begins);
        ++i;
        continue;
      }
      result += c;
      if (c == ' ' || c == ',') name_begins = result.size();
    }
    if (c == '>') --depth;
  }
  return result;
}

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

Faults parse_fault(const std::string& text) {
  std::istringstream in(text);
  Faults faults;
  std::string kind;
  in >> kind;
  if (kind == "skip") {
    static std::string file;  // a Site does not own its name
    int line = 0;
    in >> std::ws;
    std::getline(in, file, ':') >> line;
    if (in && line > 0 && in.peek() == EOF) {
      faults.skipped_wait = Site{file.c_str(), line};
      return faults;
    }
  } else if (kind == "block") {
    faults.missing_last_block = true;
    faults.kernel = rest_of(in);
    if (in) return faults;
  } else if (kind == "shared") {
    in >> faults.missing_shared_bytes;
    faults.kernel = rest_of(in);
    if (in && faults.missing_shared_bytes > 0) return faults;
  } else if (kind == "bound") {
    ShiftedBound bound;
    in >> bound.index >> bound.by;
    faults.kernel = rest_of(in);
    faults.shifted_bound = bound;
    if (in && bound.by != 0) return faults;
  }
  throw std::invalid_argument(
      fmt::format("[emulation] MANTISSA_EMULATION_FAULT must be 'skip FILE:LINE', 'block KERNEL', 'shared BYTES "
                  "KERNEL' or 'bound INDEX BY KERNEL', got '{}'",
                  text));
}

std::string kernel_name_from(const Site& site, const std::string& function) {
  const std::string before = "Parameters = {";
  const size_t begin = function.find(before) + before.size();
  const size_t end = std::min(function.find("};", begin), function.find("}]", begin));
  return fmt::format("{}:{} ({})", site.file, site.line, shortened(function.substr(begin, end - begin)));
}

}  // namespace mantissa::cuda::emulation
