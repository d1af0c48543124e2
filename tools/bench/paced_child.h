// PacedChild: a child process that runs rounds on request, see wait_for_round().
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mantissa {

// A process's output, "key: values" on each line.
using PrintedValues = std::map<std::string, std::vector<double>>;

class PacedChild {
 public:
  // Forks, so it must come before threads and devices. The child reads orders from standard input, prints values on
  // standard output and exits with the code that `body` returns. `name` is for error messages.
  PacedChild(std::string name, const std::function<int()>& body);
  ~PacedChild();  // ends it and waits for that
  PacedChild(const PacedChild&) = delete;
  PacedChild& operator=(const PacedChild&) = delete;

  const std::string& name() const { return name_; }
  // Waits until it has warmed up, or run its round. Returns its output since then. Throws Error with the child's exit
  // code if it has ended instead.
  PrintedValues wait_until_ready();
  void start_round() { order("round"); }
  // Ends it and returns its last output. Throws as wait_until_ready().
  PrintedValues finish();

 private:
  void order(const char* text);
  // Until "ready: yes" (true) or the end of the output (false).
  bool read(PrintedValues& values);
  int wait_for_end();

  std::string name_;
  pid_t process_ = -1;
  std::FILE* orders_ = nullptr;
  std::FILE* output_ = nullptr;
};

}  // namespace mantissa
