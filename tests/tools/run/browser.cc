#include "tests/tools/run/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/program/program.h"

namespace mantissa::testing {

using nlohmann::json;

Browser::Browser() : folder_(fresh_folder("browser")) {
  if (run_shell("command -v chromium").exit_code != 0) {
    throw std::runtime_error(
        "the program chromium, in which this test opens pages, is not installed: run tools/setup --tests");
  }
  // Opened for both directions, so that opening waits for nobody. The browser ends when this process does.
  const auto pipe = [&](const std::string& path) {
    ::mkfifo(path.c_str(), 0600);
    return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  };
  to_browser_ = pipe(folder_ + "/commands");
  from_browser_ = pipe(folder_ + "/answers");
  // HOME, because Chromium writes there. Its sandbox does not work inside Bazel's; the pages are our own.
  const Outcome start = run_shell(
      "cd '" + folder_ + "' && (HOME=$PWD timeout 600 " +
      command_line("chromium",
                   {"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                    "--disable-background-networking", "--disable-component-update", "--disable-sync",
                    "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=profile", "--remote-debugging-pipe"}) +
      " 3<commands 4>answers >log 2>&1 &)");
  if (start.exit_code != 0) throw std::runtime_error("chromium could not be started: " + start.output);
  const json tab = call("Target.createTarget", {{"url", "about:blank"}});
  session_ = call("Target.attachToTarget", {{"targetId", tab.at("targetId")}, {"flatten", true}}).at("sessionId");
  for (const char* domain : {"Page", "Runtime", "Log", "Network"}) call(std::string(domain) + ".enable");
}

Browser::~Browser() {
  session_.clear();
  try {
    call("Browser.close");
  } catch (const std::exception&) {  // it is gone
  }
  ::close(to_browser_);
  ::close(from_browser_);
}

Browser& Browser::shared() {
  static Browser browser;
  return browser;
}

// Messages end with a 0.
json Browser::receive() {
  constexpr int kPatienceMs = 120000;
  while (received_.find('\0') == std::string::npos) {
    pollfd ready{.fd = from_browser_, .events = POLLIN, .revents = 0};
    char buffer[1 << 16];
    const ssize_t bytes = ::poll(&ready, 1, kPatienceMs) > 0 ? ::read(from_browser_, buffer, sizeof buffer) : 0;
    if (bytes <= 0) throw std::runtime_error("chromium does not answer; it wrote:\n" + read_file(folder_ + "/log"));
    received_.append(buffer, static_cast<size_t>(bytes));
  }
  const size_t end = received_.find('\0');
  json message = json::parse(received_.substr(0, end));
  received_.erase(0, end + 1);
  return message;
}

json Browser::call(const std::string& method, const json& parameters) {
  json message = {{"id", ++calls_}, {"method", method}, {"params", parameters}};
  if (!session_.empty()) message["sessionId"] = session_;
  const std::string text = message.dump() + '\0';
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t bytes = ::write(to_browser_, text.data() + sent, text.size() - sent);
    if (bytes < 0) throw std::runtime_error("chromium takes no commands");
    sent += static_cast<size_t>(bytes);
  }
  while (true) {
    json answer = receive();
    if (answer.value("id", int64_t{0}) != calls_) {
      events_.push_back(std::move(answer));
    } else if (answer.contains("error")) {
      throw std::runtime_error(method + ": " + answer.at("error").dump());
    } else {
      return answer.at("result");
    }
  }
}

json Browser::evaluate(const std::string& expression) {
  json result = call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
  if (result.contains("exceptionDetails")) {
    events_.push_back({{"method", "Runtime.exceptionThrown"}, {"params", result}});
    return nullptr;
  }
  return result.at("result").value("value", json());
}

void Browser::open(const std::string& path) {
  events_.clear();
  call("Page.navigate", {{"url", "file://" + path}});
  const auto has_loaded = [](const json& event) { return event.value("method", "") == "Page.loadEventFired"; };
  while (std::none_of(events_.begin(), events_.end(), has_loaded)) events_.push_back(receive());
}

}  // namespace mantissa::testing
