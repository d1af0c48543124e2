#include "tools/run/watch/watch.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/checkpoint_store.h"
#include "core/io/files.h"
#include "tools/run/guard/black_box.h"
#include "tools/run/state/run_folder.h"

namespace mantissa {
namespace {

struct HealthName {
  const char* name;
  int exit_code;
};
constexpr std::array kHealths = {HealthName{"starting", 10}, HealthName{"running", 10}, HealthName{"silent", 11},
                                 HealthName{"done", 0},      HealthName{"stopped", 75}, HealthName{"failed", 12},
                                 HealthName{"dead", 12}};

// The last change of a file.
std::optional<timespec> changed_at(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(status.st_mtim) : std::nullopt;
}

double to_seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Whether a job holds the lock; for an instant, this process does.
bool is_held(const std::string& lock) {
  const int file = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

// Unix time; 0 without a heartbeat.
double last_beat(const std::optional<RunFigures>& figures) {
  return figures ? (*figures)["heartbeat"].value_or(0.0) : 0.0;
}

// Whether the start of this Unix time has no heartbeat yet. The first heartbeat gives the lock its own time, which
// compares well even if the clock goes back.
bool has_not_trained(const std::optional<RunFigures>& figures, double begun) {
  constexpr double kRounding = 1e-3;
  return !figures || (begun > last_beat(figures) && std::abs(begun - (*figures)["start"].value_or(0.0)) > kRounding);
}

RunHealth judge(const std::optional<RunFigures>& figures, bool held, double begun, double now) {
  if (has_not_trained(figures, begun)) return held ? RunHealth::kStarting : RunHealth::kDead;
  const double beat = last_beat(figures);
  constexpr RunHealth kEnds[] = {RunHealth::kRunning, RunHealth::kDone, RunHealth::kStopped, RunHealth::kFailed};
  if (figures->progress != RunProgress::kRunning) return kEnds[static_cast<size_t>(figures->progress)];
  // A lock of another host may not be seen here.
  const bool is_fresh = now - beat < std::max(60.0, 10.0 * 1e-3 * (*figures)["ms"].value_or(0.0));
  if (!held && (figures->host == host_name() || !is_fresh)) return RunHealth::kDead;
  return is_fresh ? RunHealth::kRunning : RunHealth::kSilent;
}

// The text of a line of run.log, after time, host, job and rank; empty for the second line of a text.
std::string_view text_behind_tags(std::string_view line) {
  constexpr size_t kTimeLength = std::string_view("2026-11-27 03:04:05.123 ").size();
  if (line.size() < kTimeLength || line[4] != '-' || line[10] != ' ' || line[13] != ':' || line[19] != '.') return "";
  line.remove_prefix(kTimeLength);
  line.remove_prefix(std::min(line.size(), line.find(' ')));
  for (const std::string_view tag : {" [job ", " [rank "}) {
    if (line.starts_with(tag)) line.remove_prefix(std::min(line.size(), line.find(']') + 1));
  }
  return line.substr(std::min<size_t>(line.size(), 1));
}

// The message with which the start of this Unix time failed before it had a log; empty if there is none.
std::string error_of_start(const std::string& run_dir, double begun) {
  for (int rank = 0, ranks = 1; rank < ranks; ++rank) {
    const auto box = find_black_box(run_dir + kBlackBoxFolder, rank);
    if (!box) break;
    ranks = box->header.ranks;
    // It is made after the lock: an older one is of another start.
    const bool is_of_start = 1e-9 * static_cast<double>(box->header.started_unix_ns) >= begun;
    if (is_of_start && box->header.error[0] != '\0') return std::string(text_of(box->header.error));
  }
  return "";
}

// The heartbeat of a run that was killed may be seconds old. Its black box has the last step. A start that could make
// no box leaves the box of the start before: its events are older than the first heartbeat.
void take_last_step(const BlackBoxContent& box, RunFigures& figures) {
  const double start = figures["start"].value_or(0.0);
  for (const BlackBoxEvent& event : box.events) {
    if (1e-9 * static_cast<double>(event.unix_ns) < start) continue;
    const bool is_applied = event.kind == BlackBoxEvent::Kind::kStep;
    if (is_applied || event.kind == BlackBoxEvent::Kind::kSkipped) figures.set("step", static_cast<double>(event.step));
    if (is_applied) figures.set("loss", event.value);
  }
}

// Without control characters, in at most `columns` bytes.
std::string as_shown(std::string line, size_t columns) {
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  if (line.size() <= columns) return line;
  size_t size = columns - 3;
  while (size > 0 && (static_cast<unsigned char>(line[size]) & 0xc0) == 0x80) --size;  // not within a UTF-8 character
  return line.substr(0, size) + "...";
}

void read_warnings(const std::string& path, RunStatus& status) {
  std::istringstream lines(text_of_file(path).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::string_view text = text_behind_tags(line);
    if (text.starts_with(kStartMark)) {
      status.warnings = 0;
      status.last_warnings.clear();
    }
    if (!text.starts_with("warning: ") && !text.starts_with("error: ")) continue;
    ++status.warnings;
    if (status.last_warnings.size() == RunStatus::kLastWarnings)
      status.last_warnings.erase(status.last_warnings.begin());
    status.last_warnings.push_back(as_shown(line, 4096));
  }
}

std::string at_time(double seconds) {
  if (!(seconds > 0.0 && seconds < 1e11)) return "?";  // of a damaged file
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(seconds)));
}

std::string ago(double time, double now) {
  const double seconds = std::max(0.0, now - time);
  return seconds < 60.0 ? fmt::format("{:.0f} s ago", seconds) : to_clock(seconds) + " ago";
}

std::string verdict(const RunStatus& status, double now) {
  std::string text = name(status.health);
  text += ":";
  const bool is_refused = status.health == RunHealth::kFailed && has_not_trained(status.figures, status.begun);
  if (is_refused) text += " at the start,";
  if (!status.figures) {
    if (status.health == RunHealth::kStarting) return text + " since " + at_time(status.begun);
    if (is_refused) return text + " before the first step";
    const bool has_ended = status.health == RunHealth::kDone || status.health == RunHealth::kStopped;
    if (has_ended) return text + " by its black box; " + kMetricsPromName + " is missing";
    return text + " it never began to train, or wrote no " + kMetricsPromName;
  }
  const RunFigures& figures = *status.figures;
  text += fmt::format("{} step {:.0f} of {:.0f}", is_refused ? " after" : "", figures["step"].value_or(0.0),
                      figures["steps_total"].value_or(0.0));
  if (is_refused) return text;
  const auto add = [&](const char* name) {
    if (const auto value = figures[name]) text += ", " + metric(name).line.text(*value);
  };
  add("loss");
  if (status.health == RunHealth::kStarting) return text + " before; since " + at_time(status.begun);
  add("tokens_per_second");
  if (const auto end = figures["estimated_end"]; end && status.health == RunHealth::kRunning) {
    text += fmt::format(", ends in about {} ({})", to_clock(std::max(0.0, *end - now)), at_time(*end));
  }
  if (status.health == RunHealth::kStopped) text += "; the same command continues";
  if (status.health == RunHealth::kDead) text += "; no job holds the folder";
  if (status.health == RunHealth::kDead && status.checkpoint.step >= 0) text += "; the same command continues";
  return text;
}

}  // namespace

const char* name(RunHealth health) { return kHealths[static_cast<size_t>(health)].name; }
int exit_code(RunHealth health) { return kHealths[static_cast<size_t>(health)].exit_code; }

LastCheckpoint last_checkpoint(const std::string& run_dir) {
  const std::string root = checkpoint_root(run_dir);
  require_readable(root);
  std::error_code none_yet;
  for (const auto& entry : std::filesystem::directory_iterator(root, none_yet)) require_readable(entry.path());
  LastCheckpoint found;
  const CheckpointStore store(root, {.warn = [](const std::string&) {}});
  // Unreadable checkpoints are damaged, or the run has just removed them. A new start leaves them out, too.
  const auto last = store.last_saved([&found](const CheckpointError&) { found.has_unreadable = true; });
  if (!last) return found;
  found.step = last->step;
  found.time = changed_at(last->folder + "/" + kManifestName).value_or(timespec{});
  return found;
}

RunStatus read_status(const std::string& run_dir, double now) {
  const std::string lock = run_dir + "/" + kLockName;
  for (const std::string& file : {lock, run_dir + "/" + kMetricsPromName, run_dir + "/" + kRunLogName}) {
    require_readable(file);
  }
  require<ConfigError>(!std::filesystem::is_directory(run_dir + "/" + kMetricsPromName),
                       "'{}/{}' is a folder: expected the figures of the run, a file; remove the folder", run_dir,
                       kMetricsPromName);
  const auto begun = changed_at(lock);
  RunStatus status{.figures = read_metrics_prom(run_dir), .begun = to_seconds(begun.value_or(timespec{}))};
  if (!begun && !status.figures) {
    if (!std::filesystem::exists(run_dir)) throw ConfigError("'{}' does not exist", run_dir);
    throw ConfigError("'{}' is not a run folder: it has neither {} nor {}", run_dir, kLockName, kMetricsPromName);
  }
  status.health = judge(status.figures, is_held(lock), status.begun, now);
  const bool is_dead = status.health == RunHealth::kDead;
  const auto box = is_dead ? find_black_box(run_dir + kBlackBoxFolder, 0) : std::nullopt;
  // A copied run has a new lock, and a start may have been killed before it was accepted: the end before counts.
  if (is_dead && status.figures && status.figures->progress != RunProgress::kRunning &&
      (!box || 1e-9 * static_cast<double>(box->header.started_unix_ns) <= last_beat(status.figures))) {
    status.begun = (*status.figures)["start"].value_or(0.0);
    status.health = judge(status.figures, false, status.begun, now);
  }
  status.checkpoint = last_checkpoint(run_dir);
  read_warnings(run_dir + "/" + kRunLogName, status);
  if (status.health != RunHealth::kDead) return status;
  if (!has_not_trained(status.figures, status.begun)) {
    if (box) take_last_step(*box, *status.figures);  // else the heartbeat has to do
    return status;
  }
  // Its heartbeats could not be written. Its lock has the time of the first heartbeat, later than its box.
  if (box && 1e-9 * static_cast<double>(box->header.ended_unix_ns) >= status.begun) {
    if (box->header.exit_code == static_cast<int>(ExitCode::kOk)) status.health = RunHealth::kDone;
    if (box->header.exit_code == static_cast<int>(ExitCode::kPreempted)) status.health = RunHealth::kStopped;
  }
  if (const std::string error = error_of_start(run_dir, status.begun); !error.empty()) {
    status.health = RunHealth::kFailed;
    status.warnings = 1;
    status.last_warnings = {as_shown("error: " + error, 4096)};
  }
  return status;
}

std::string to_text(const RunStatus& status, double now) {
  std::string text = verdict(status, now) + "\n";
  if (status.figures) {
    const RunFigures& figures = *status.figures;
    text += "on " + as_shown(figures.host, 40) + (figures.job.empty() ? "" : ", job " + as_shown(figures.job, 20));
    if (const auto start = figures["start"]) text += ", since " + at_time(*start);
    if (const auto heartbeat = figures["heartbeat"]) text += ", heartbeat " + ago(*heartbeat, now);
    text += "\n";
    for (const Metric& row : metrics()) {
      const auto value = row.line.part == Metric::Line::Part::kStatus ? figures[row.name] : std::nullopt;
      const std::string line = value ? row.line.text(*value) : "";
      if (!line.empty()) text += line + "\n";
    }
  }
  const LastCheckpoint& checkpoint = status.checkpoint;
  text += checkpoint.step >= 0
              ? fmt::format("last checkpoint: step {}, {}\n", checkpoint.step, ago(to_seconds(checkpoint.time), now))
              : "last checkpoint: none\n";
  text += fmt::format("warnings: {}\n", status.warnings);
  for (const std::string& warning : status.last_warnings) text += "  " + as_shown(warning, kTextColumns - 2) + "\n";
  return text;
}

nlohmann::json to_json(const RunStatus& status, double now) {
  // Whole numbers without a point.
  const auto number = [](const std::optional<double>& value) {
    if (!value) return nlohmann::json(nullptr);
    const bool is_whole = std::trunc(*value) == *value && std::abs(*value) < 1e15;
    return is_whole ? nlohmann::json(static_cast<int64_t>(*value)) : nlohmann::json(*value);
  };
  const auto age = [now](const std::optional<double>& time) {
    return time ? nlohmann::json(std::max(0.0, now - *time)) : nlohmann::json(nullptr);
  };
  const RunFigures figures = status.figures.value_or(RunFigures());
  const LastCheckpoint& saved = status.checkpoint;
  const bool is_saved = saved.step >= 0;
  nlohmann::json json = {{"status", name(status.health)},
                         {"exit_code", exit_code(status.health)},
                         {"host", figures.host},
                         {"job", figures.job},
                         {"heartbeat_age_seconds", age(figures["heartbeat"])},
                         {"checkpoint_step", is_saved ? nlohmann::json(saved.step) : nlohmann::json(nullptr)},
                         {"checkpoint_age_seconds", is_saved ? age(to_seconds(saved.time)) : nlohmann::json(nullptr)},
                         {"warnings", status.warnings},
                         {"last_warnings", status.last_warnings}};
  for (const Metric& row : metrics()) {
    const char* const name = row.status != nullptr ? row.status : row.prometheus.name;
    if (name == nullptr || *name == '\0') continue;
    const auto value = figures[row.name];
    json[name] = number(value ? std::optional(*value / row.prometheus.units) : std::nullopt);
  }
  return json;
}

int status_verb(const StatusRequest& request) {
  int code = 0;
  const int failed = run_reported([&] {
    const double now = unix_time();
    const RunStatus status = read_status(request.run, now);
    std::string text = request.json
                           ? to_json(status, now).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                           : to_text(status, now);
    const bool has_failed = status.health == RunHealth::kFailed || status.health == RunHealth::kDead;
    if (!request.json && has_failed && status.figures) {
      text += fmt::format("why: {} postmortem {}\n", shell_word(program_invocation_name), shell_word(request.run));
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    code = exit_code(status.health);
  });
  return failed != 0 ? failed : code;
}

}  // namespace mantissa
