// The tests of a kernel family must notice a fault of its kernels. The test program of all kernels (its path is in
// MANTISSA_FAULTY_PROGRAM) runs on the emulated GPU with one fault at a time, in unmodified kernels:
//
//   skip     a barrier, warp exchange or wait for copies that does not wait
//   bound    an integer argument (an extent, a stride, an offset) off by one
//   block    a grid without its last block: a count of blocks, rounded down
//   shared   a float less of shared memory: an array too short by an element
//
// Every wait and every kernel of a run gets these faults in turn. A test that ends differently has noticed. The tests
// that meet a fault run from the shortest on, with a few seeds, because some thread orders do no harm.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "tests/core/kernels/faulty_program.h"
#include "tests/core/kernels/harmless_faults.h"

namespace mantissa::kernel_test {
namespace {

constexpr int kSeeds = 3;

struct TestRun {
  std::string name;
  double seconds;
};

struct Wait {
  std::string file;
  int line;
  std::vector<TestRun> tests;  // tests that wait there
};

struct Kernel {
  std::string file;
  int line;
  std::string parameters;
  std::vector<int64_t> bounds;
  size_t shared_bytes = 0;
  std::vector<TestRun> tests;  // tests that run it
};

struct Fault {
  std::string text;
  std::vector<TestRun>* tests;     // tests that meet it
  const char* harmless = nullptr;  // the reason
};

// Splits "./a.h:12" into "a.h" and 12.
std::pair<std::string, int> split_place(const std::string& place) {
  const size_t begin = place.starts_with("./") ? 2 : 0, colon = place.rfind(':');
  return {place.substr(begin, colon - begin), std::stoi(place.substr(colon + 1))};
}

// The waits and kernels of a family's tests, from reports of runs without faults.
class Inventory {
 public:
  Inventory(const FaultyProgram& program, const std::string& family) {
    const std::string report = testing::TempDir() + "/emulation_report.txt";
    for (const std::string& test : program.tests("tests/core/kernels/" + family + "/")) {
      std::remove(report.c_str());
      const Outcome outcome = program.run({.test = test, .report = report});
      if (outcome.ending != Ending::kPassed) {
        throw std::runtime_error(fmt::format("{} fails without a fault:\n{}", test, outcome.output));
      }
      seconds_ += outcome.seconds;
      add({test, outcome.seconds}, report);
    }
    for (auto& [place, wait] : waits_) sort(wait.tests);
    for (auto& [name, kernel] : kernels_) sort(kernel.tests);
  }

  std::map<std::string, Wait>& waits() { return waits_; }
  std::map<std::string, Kernel>& kernels() { return kernels_; }
  double seconds() const { return seconds_; }

 private:
  static void sort(std::vector<TestRun>& tests) {
    std::sort(tests.begin(), tests.end(), [](const TestRun& a, const TestRun& b) { return a.seconds < b.seconds; });
  }

  void add(const TestRun& test, const std::string& report) {
    std::ifstream in(report);
    if (!in) throw std::runtime_error(test.name + " leaves no report");
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string kind, text;
      words >> kind >> text;
      if (kind == "wait") {
        Wait& wait = waits_[text];
        std::tie(wait.file, wait.line) = split_place(text);
        wait.tests.push_back(test);
        continue;
      }
      size_t shared_bytes = 0;
      std::string name;
      std::getline(words >> shared_bytes >> std::ws, name);
      Kernel& kernel = kernels_[name];
      const size_t open = name.find(" (");
      std::tie(kernel.file, kernel.line) = split_place(name.substr(0, open));
      kernel.parameters = name.substr(open + 2, name.size() - open - 3);
      kernel.shared_bytes = std::max(kernel.shared_bytes, shared_bytes);
      kernel.tests.push_back(test);
      std::istringstream bounds(text == "none" ? "" : text);
      size_t index = 0;
      for (std::string bound; std::getline(bounds, bound, ','); ++index) {
        if (index == kernel.bounds.size()) kernel.bounds.push_back(0);
        kernel.bounds[index] = std::max<int64_t>(kernel.bounds[index], std::stoll(bound));
      }
    }
  }

  std::map<std::string, Wait> waits_;      // by name in the report
  std::map<std::string, Kernel> kernels_;  // by name in the report
  double seconds_ = 0.0;
};

const char* why_harmless(const Wait& wait, const std::map<std::string, Wait>& all) {
  size_t index = 0;
  for (const auto& [place, other] : all) index += other.file == wait.file && other.line < wait.line;
  for (const HarmlessSkip& skip : kHarmlessSkips) {
    if (skip.file == wait.file && skip.index == index) return skip.why;
  }
  return nullptr;
}

const char* why_shortage_is_harmless(const Kernel& kernel) {
  for (const HarmlessShortage& shortage : kHarmlessShortages) {
    if (shortage.file == kernel.file) return shortage.why;
  }
  return nullptr;
}

const char* why_harmless(const Kernel& kernel, size_t index, int by, const std::map<std::string, Kernel>& all) {
  size_t launch = 0;
  for (const auto& [name, other] : all) {
    launch += other.file == kernel.file && other.parameters == kernel.parameters && other.line < kernel.line;
  }
  for (const HarmlessShift& shift : kHarmlessShifts) {
    if (shift.file == kernel.file && shift.parameters == kernel.parameters && shift.index == index &&
        std::count(shift.launches.begin(), shift.launches.end(), launch) > 0 &&
        std::count(shift.by.begin(), shift.by.end(), by) > 0) {
      return shift.why;
    }
  }
  return nullptr;
}

std::vector<Fault> faults_of(Inventory& inventory) {
  std::vector<Fault> faults;
  for (auto& [place, wait] : inventory.waits()) {
    faults.push_back({"skip " + place, &wait.tests, why_harmless(wait, inventory.waits())});
  }
  for (auto& [name, kernel] : inventory.kernels()) {
    faults.push_back({"block " + name, &kernel.tests});
    if (kernel.shared_bytes > 0)
      faults.push_back({"shared 4 " + name, &kernel.tests, why_shortage_is_harmless(kernel)});
    for (size_t index = 0; index < kernel.bounds.size(); ++index) {
      for (const int by : {-1, 1}) {
        if (by < 0 && kernel.bounds[index] <= 1) continue;  // see ShiftedBound: not decreased to zero
        faults.push_back({fmt::format("bound {} {:+} {}", index, by, name), &kernel.tests,
                          why_harmless(kernel, index, by, inventory.kernels())});
      }
    }
  }
  return faults;
}

const char* text_of(Ending ending) {
  switch (ending) {
    case Ending::kPassed:
      return "nothing";
    case Ending::kFailedCheck:
      return "a check";
    case Ending::kCrashed:
      return "watched memory";
    case Ending::kHung:
      return "its time";
  }
  return "";
}

// The test that noticed, and how; empty if no test did. Faults of the same kernel try that test first.
std::string noticed_by(const FaultyProgram& program, const Fault& fault, double& seconds) {
  for (int seed = 1; seed <= kSeeds; ++seed) {
    for (auto test = fault.tests->begin(); test != fault.tests->end(); ++test) {
      const Outcome outcome =
          program.run({.test = test->name, .fault = fault.text, .seed = seed, .usual_seconds = test->seconds});
      seconds += outcome.seconds;
      if (outcome.ending == Ending::kPassed) continue;
      std::rotate(fault.tests->begin(), test, test + 1);
      return fmt::format("{}, by {}{}", fault.tests->front().name, text_of(outcome.ending),
                         seed == 1 ? "" : fmt::format(", seed {}", seed));
    }
  }
  return "";
}

class SeededFaults : public ::testing::TestWithParam<const char*> {};

TEST_P(SeededFaults, AreNoticed) {
  const char* const path = std::getenv("MANTISSA_FAULTY_PROGRAM");
  ASSERT_NE(path, nullptr) << "set it to the kernels' test program on the emulated GPU";
  const FaultyProgram program(path);
  Inventory inventory(program, GetParam());
  ASSERT_FALSE(inventory.kernels().empty()) << "the tests of " << GetParam() << " run no kernel";
  size_t noticed = 0, harmless = 0;
  double seconds = 0.0;
  for (const Fault& fault : faults_of(inventory)) {
    if (fault.harmless != nullptr) {
      fmt::print("{} -> harmless: {}\n", fault.text, fault.harmless);
      ++harmless;
      continue;
    }
    const std::string by = noticed_by(program, fault, seconds);
    fmt::print("{} -> {}\n", fault.text, by.empty() ? "NOT NOTICED" : by);
    EXPECT_FALSE(by.empty()) << "no test of " << GetParam() << " notices the fault '" << fault.text
                             << "': the tests are too weak, or what it takes away is not needed";
    noticed += by.empty() ? 0 : 1;
  }
  fmt::print("{} waits, {} kernels: {} faults noticed, {} harmless; {:.1f} s without faults, {:.1f} s with\n",
             inventory.waits().size(), inventory.kernels().size(), noticed, harmless, inventory.seconds(), seconds);
}

// Every family but gemm, for which the emulated GPU has no kernel.
INSTANTIATE_TEST_SUITE_P(Kernels, SeededFaults,
                         ::testing::Values("activation", "attention", "elementwise", "embedding", "loss", "norm",
                                           "optimizer", "probe", "quantize", "reduction"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace mantissa::kernel_test
