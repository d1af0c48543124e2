#include "core/cuda/emulation/fault_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

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

}  // namespace

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

}  // namespace mantissa::cuda::emulation
