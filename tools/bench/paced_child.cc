#include "tools/bench/paced_child.h"

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "core/base/error.h"

namespace mantissa {
namespace {

struct Pipe {
  int read = -1, write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw Error(ExitCode::kInternal, fmt::format("pipe: {}", std::strerror(errno)));
  return {ends[0], ends[1]};
}

}  // namespace

PacedChild::PacedChild(std::string name, const std::function<int()>& body) : name_(std::move(name)) {
  std::signal(SIGPIPE, SIG_IGN);  // writing to an ended process must not kill this one; its output shows the error
  const Pipe orders = make_pipe(), output = make_pipe();
  std::fflush(nullptr);  // so that buffered output is printed once
  process_ = fork();
  if (process_ < 0) throw Error(ExitCode::kInternal, fmt::format("fork: {}", std::strerror(errno)));
  if (process_ == 0) {
    dup2(orders.read, STDIN_FILENO);
    dup2(output.write, STDOUT_FILENO);
    for (const int end : {orders.read, orders.write, output.read, output.write}) close(end);
    const int code = body();
    std::fflush(nullptr);
    _exit(code);
  }
  close(orders.read);
  close(output.write);
  orders_ = fdopen(orders.write, "w");
  output_ = fdopen(output.read, "r");
}

PacedChild::~PacedChild() {
  if (orders_ != nullptr) {
    order("end");  // closing the pipe is not enough: children forked later also hold it
    std::fclose(orders_);
  }
  std::fclose(output_);
  if (process_ > 0) wait_for_end();
}

PrintedValues PacedChild::wait_until_ready() {
  PrintedValues values;
  if (read(values)) return values;
  const int code = wait_for_end();
  throw Error(static_cast<ExitCode>(code == 0 ? static_cast<int>(ExitCode::kInternal) : code),
              fmt::format("{} ended with exit code {} instead of a round; it has told why", name_, code));
}

PrintedValues PacedChild::finish() {
  order("end");
  std::fclose(orders_);
  orders_ = nullptr;
  PrintedValues values;
  read(values);
  const int code = wait_for_end();
  if (code != 0) throw Error(static_cast<ExitCode>(code), fmt::format("{} ended with exit code {}", name_, code));
  return values;
}

void PacedChild::order(const char* text) {
  std::fprintf(orders_, "%s\n", text);
  std::fflush(orders_);
}

bool PacedChild::read(PrintedValues& values) {
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

int PacedChild::wait_for_end() {
  int status = 0;
  waitpid(process_, &status, 0);
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kInternal);
}

}  // namespace mantissa
