// Black boxes of jobs that ended long ago, on imaginary nodes.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tools/run/guard/black_box.h"

namespace mantissa::testing {

class BoxFile {
 public:
  using Kind = BlackBoxEvent::Kind;
  // Times in milliseconds count from here: 2023-11-14 22:13:20 UTC.
  static constexpr int64_t kStartNs = 1'700'000'000'000'000'000;
  static int64_t at(int64_t ms) { return kStartNs + 1'000'000 * ms; }

  BoxFile(int rank, int ranks) {
    header_.capacity = BlackBox::kCapacity;
    header_.rank = rank;
    header_.ranks = ranks;
    header_.pid = 70 + rank;
    header_.started_unix_ns = kStartNs;
    on("a");
  }

  BoxFile& on(const std::string& host) { return assign(header_.host, host); }
  BoxFile& started(int64_t ms) {
    header_.started_unix_ns = at(ms);
    return *this;
  }
  BoxFile& event(Kind kind, int64_t ms, int64_t step, const std::string& name, double value = 0.0) {
    BlackBoxEvent event{.number = events_.size() + 1, .unix_ns = at(ms), .step = step, .value = value};
    event.kind = kind;
    std::memcpy(event.name.data(), name.data(), std::min(name.size(), event.name.size()));
    events_.push_back(event);
    return *this;
  }
  // Begins a step and its phase.
  BoxFile& phase(int64_t ms, int64_t step, const std::string& name) {
    return event(Kind::kPhaseBegins, ms, step, name);
  }
  BoxFile& done(int64_t ms, int64_t step) { return event(Kind::kStep, ms, step, "", 2.5); }
  BoxFile& waits(int64_t ms, int64_t step, int number, const std::string& name = "node_barrier") {
    return event(Kind::kCollectiveBegins, ms, step, name, number);
  }
  BoxFile& passes(int64_t ms, int64_t step, int number, const std::string& name = "node_barrier") {
    return waits(ms, step, number, name).event(Kind::kCollectiveEnds, ms, step, name, number);
  }
  BoxFile& beats(int64_t ms) {
    header_.alive_unix_ns = at(ms);
    return *this;
  }
  BoxFile& unread() {
    header_.output_unread = 1;
    return *this;
  }
  BoxFile& ends(int64_t ms, int exit_code, const std::string& error = "") {
    header_.ended_unix_ns = at(ms);
    header_.exit_code = exit_code;
    return assign(header_.error, error);
  }

  void write(const std::string& run, const std::string& suffix = ".box") const {
    std::string path = BlackBox::path(run + "/black_box", header_.rank);
    std::filesystem::create_directories(run + "/black_box");
    path.replace(path.size() - 4, 4, suffix);
    std::vector<BlackBoxEvent> ring = events_;
    ring.resize(BlackBox::kCapacity);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_), sizeof(header_));
    file.write(reinterpret_cast<const char*>(ring.data()),
               static_cast<std::streamsize>(ring.size() * sizeof(BlackBoxEvent)));
  }

 private:
  template <size_t kSize>
  BoxFile& assign(std::array<char, kSize>& target, const std::string& text) {
    target = {};
    std::memcpy(target.data(), text.data(), std::min(text.size(), kSize - 1));
    return *this;
  }

  BlackBoxHeader header_;
  std::vector<BlackBoxEvent> events_;
};

}  // namespace mantissa::testing
