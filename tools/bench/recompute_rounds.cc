#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "core/base/error.h"
#include "tools/bench/step_modes.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

// A process's output, "key: values" on each line.
using PrintedValues = std::map<std::string, std::vector<double>>;

[[noreturn]] void fail(const char* call) {
  throw Error(ExitCode::kInternal, fmt::format("{}: {}", call, std::strerror(errno)));
}

// A child process that runs rounds on request, as wait_for_round() in step.cc does.
class PacedChild {
 public:
  // Forks, so it must come before threads and devices. The child reads orders from standard input, prints values on
  // standard output and exits with the code that `body` returns. `name` is for error messages.
  PacedChild(std::string name, const std::function<int()>& body) : name_(std::move(name)) {
    std::signal(SIGPIPE, SIG_IGN);  // writing to an ended process must not kill this one; its output shows the error
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) fail("socketpair");
    std::fflush(nullptr);  // so that buffered output is printed once
    process_ = fork();
    if (process_ < 0) fail("fork");
    if (process_ == 0) {
      dup2(ends[1], STDIN_FILENO);
      dup2(ends[1], STDOUT_FILENO);
      for (const int end : ends) close(end);
      const int code = body();
      std::fflush(nullptr);
      _exit(code);
    }
    close(ends[1]);
    orders_ = fdopen(dup(ends[0]), "w");
    output_ = fdopen(ends[0], "r");
  }
  PacedChild(const PacedChild&) = delete;
  PacedChild& operator=(const PacedChild&) = delete;
  // Ends it and waits for that.
  ~PacedChild() {
    if (process_ > 0) order("end");  // closing is not enough: children forked later also hold the socket
    std::fclose(orders_);
    std::fclose(output_);
    if (process_ > 0) wait_for_end();
  }

  const std::string& name() const { return name_; }

  // Waits until it has warmed up, or run its round. Returns its output since then. Throws Error with the child's exit
  // code if it has ended instead.
  PrintedValues wait_until_ready() {
    PrintedValues values;
    if (!read(values)) refuse_end(wait_for_end(), " instead of a round; it has told why");
    return values;
  }

  // Milliseconds per step of a round. Throws likewise.
  double round() {
    order("round");
    return only(wait_until_ready(), "step_ms");
  }

  // Ends it and returns its last output. Throws likewise.
  PrintedValues finish() {
    order("end");
    PrintedValues values;
    read(values);
    if (const int code = wait_for_end(); code != 0) refuse_end(code, "");
    return values;
  }

  double only(const PrintedValues& values, const std::string& key) const {
    const auto found = values.find(key);
    if (found != values.end() && found->second.size() == 1) return found->second.front();
    throw Error(ExitCode::kInternal, fmt::format("{} printed no {}", name_, key));
  }

 private:
  void order(const char* text) {
    std::fprintf(orders_, "%s\n", text);
    std::fflush(orders_);
  }

  [[noreturn]] void refuse_end(int code, const char* when) const {
    throw Error(code == 0 ? ExitCode::kInternal : static_cast<ExitCode>(code),
                fmt::format("{} ended with exit code {}{}", name_, code, when));
  }

  // Until "ready: yes" (true) or the end of the output (false).
  bool read(PrintedValues& values) {
    char* line = nullptr;
    size_t size = 0;
    bool is_ready = false;
    while (!is_ready && getline(&line, &size, output_) >= 0) {
      const std::string text(line);
      const size_t colon = text.find(": ");
      is_ready = text == "ready: yes\n";
      if (is_ready || colon == std::string::npos) continue;
      std::istringstream numbers(text.substr(colon + 2));
      std::vector<double>& list = values[text.substr(0, colon)];
      for (double number = 0.0; numbers >> number;) list.push_back(number);
    }
    std::free(line);
    return is_ready;
  }

  int wait_for_end() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kInternal);
  }

  std::string name_;
  pid_t process_ = -1;
  std::FILE* orders_ = nullptr;
  std::FILE* output_ = nullptr;
};

struct Variant {
  std::unique_ptr<PacedChild> process;
  std::vector<double> step_ms;
  PrintedValues last;
};

void print(const Variant& variant, const Variant& base) {
  const auto bytes = [](const Variant& of, const char* key) { return of.process->only(of.last, key); };
  const double activations = bytes(variant, "activation_bytes");
  std::vector<double> ratios;  // round by round
  std::ranges::transform(variant.step_ms, base.step_ms, std::back_inserter(ratios), std::divides());
  std::printf(
      "%s: %s\n", variant.process->name().c_str(),
      fmt::format("ms a step median {:.1f}, min {:.1f}, max {:.1f} ({:.3f} of none); activations {:.1f} MiB ({:.3f} of "
                  "none); process {:.1f} MiB",
                  quantile(variant.step_ms, 0.5), quantile(variant.step_ms, 0.0), quantile(variant.step_ms, 1.0),
                  quantile(ratios, 0.5), activations / kMib, activations / bytes(base, "activation_bytes"),
                  bytes(variant, "memory_bytes") / kMib)
          .c_str());
}

}  // namespace

void compare_recompute(const std::function<int(const std::string& setting)>& run_paced, int rounds) {
  std::vector<Variant> variants;
  for (const char* setting : {"none", "selective", "full"}) {
    variants.emplace_back().process =
        std::make_unique<PacedChild>(fmt::format("train.recompute={}", setting), [&] { return run_paced(setting); });
    variants.back().process->wait_until_ready();  // one after the other: warming up takes all cores, too
  }
  for (int round = 0; round < rounds; ++round) {
    for (Variant& variant : variants) variant.step_ms.push_back(variant.process->round());
  }
  for (Variant& variant : variants) variant.last = variant.process->finish();
  for (const Variant& variant : variants) print(variant, variants.front());
  for (const Variant& variant : variants) {
    if (variant.last.at("losses") == variants.front().last.at("losses")) continue;
    throw FaultError(fmt::format("losses of {} are not those of none", variant.process->name()));
  }
}

}  // namespace mantissa
