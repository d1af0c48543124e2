// Browser: headless Chromium, driven by the Chrome DevTools Protocol over a pipe.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mantissa::testing {

// Opens one tab. Errors are exceptions with the browser's text.
class Browser {
 public:
  Browser();
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // The one of this test program, started when it is first needed.
  static Browser& shared();

  // Calls a method of the protocol and returns its result.
  nlohmann::json call(const std::string& method, const nlohmann::json& parameters = nlohmann::json::object());
  // The value of a JavaScript expression, or the result of a promise; null if it throws: see `events`.
  nlohmann::json evaluate(const std::string& expression);
  // Loads a file, until all that it refers to is loaded or has failed. Forgets earlier events.
  void open(const std::string& path);
  // Messages of the browser since open().
  const std::vector<nlohmann::json>& events() const { return events_; }

 private:
  nlohmann::json receive();

  std::string folder_, received_, session_;
  int to_browser_ = -1, from_browser_ = -1;
  int64_t calls_ = 0;
  std::vector<nlohmann::json> events_;
};

}  // namespace mantissa::testing
