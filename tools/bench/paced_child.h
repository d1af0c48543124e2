// PacedChild: a process of its own that runs rounds when told to, see wait_for_round().
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mantissa {

// What a process prints, "key: values" a line.
using PrintedValues = std::map<std::string, std::vector<double>>;

class PacedChild {
 public:
  // Forks, so it must come before threads and devices. The child reads orders from standard input, prints values on
  // standard output and ends with the exit code that `body` returns. `name` stands in errors.
  PacedChild(std::string name, const std::function<int()>& body);
  ~PacedChild();  // ends it and waits for that
  PacedChild(const PacedChild&) = delete;
  PacedChild& operator=(const PacedChild&) = delete;

  const std::string& name() const { return name_; }
  // Waits until it has warmed up, or has run its round. Returns what it printed since. Error with the child's exit code
  // if it has ended instead.
  PrintedValues wait_until_ready();
  void start_round() { order("round"); }
  // Ends it and returns the last of what it printed. Error as wait_until_ready().
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
