#include <fmt/chrono.h>

#include <algorithm>
#include <csignal>
#include <iterator>

#include "core/base/error.h"
#include "core/base/wrapped_text.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/postmortem/postmortem.h"

namespace mantissa {
namespace {

using Kind = FirstCause::Kind;
using Ranks = std::vector<int>;

// Watchdogs give a sign of life twice a second. Ranks whose last ones are further apart did not die together.
constexpr int64_t kApartNs = 1'000'000'000;

double to_seconds(int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

const RankHistory& of(const RunHistory& run, int rank) { return run.ranks[static_cast<size_t>(rank)]; }

template <typename Condition>
Ranks filtered(const RunHistory& run, const Ranks& ranks, Condition condition) {
  Ranks kept;
  std::ranges::copy_if(ranks, std::back_inserter(kept), [&](int rank) { return condition(of(run, rank)); });
  return kept;
}

template <typename Time>
int earliest(const RunHistory& run, const Ranks& ranks, Time time) {
  return *std::ranges::min_element(ranks, {}, [&](int rank) { return time(of(run, rank)); });
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// "rank 1 (node b, process 77)"
std::string name_rank(const RunHistory& run, int rank) {
  const RankHistory& history = of(run, rank);
  if (history.end == RankEnd::kUnknown) return fmt::format("rank {} ({})", rank, history.problem);
  return fmt::format("rank {} (node {}, process {})", rank, history.host, history.pid);
}

// Whether these are all ranks of a node, and the job has other nodes. A single rank is named as a rank.
bool is_node(const RunHistory& run, const Ranks& ranks) {
  if (ranks.size() < 2 || !run.has_several_hosts()) return false;
  const std::string& host = of(run, ranks[0]).host;
  const auto on_it = [&](const RankHistory& rank) { return rank.host == host; };
  return std::ranges::all_of(ranks, [&](int rank) { return on_it(of(run, rank)); }) &&
         std::ranges::count_if(run.ranks, on_it) == std::ssize(ranks);
}

// "rank 1 (node b, process 77)", "node b (ranks 2 and 3)" or "ranks 1 and 2"
std::string name_ranks(const RunHistory& run, const Ranks& ranks) {
  if (is_node(run, ranks)) return fmt::format("node {} ({})", of(run, ranks[0]).host, list_ranks(ranks));
  return ranks.size() == 1 ? name_rank(run, ranks[0]) : list_ranks(ranks);
}

// "in phase backward of step 41"
std::string where(const RankHistory& rank) {
  const bool has_phase = rank.phase != "start" && rank.phase != "between phases";
  const std::string place = has_phase ? "in phase " + rank.phase : rank.phase == "start" ? "at the start" : rank.phase;
  return rank.step == 0 ? place : fmt::format("{} of step {}", place, rank.step);
}

std::string error_of(const RankHistory& rank) {
  return rank.error.empty() ? fmt::format("exit code {}", rank.exit_code) : first_line(rank.error);
}

int64_t last_step(const RunHistory& run) {
  return std::max(int64_t{0}, std::ranges::max_element(run.ranks, {}, &RankHistory::step)->step);
}

// The number of the collective in which a rank waits; 0: it does not wait.
uint64_t awaited_by(const RankHistory& rank) { return rank.waits_in ? static_cast<uint64_t>(rank.waits_in->value) : 0; }

int64_t last_seen(const RunHistory& run) {
  return std::max(int64_t{0}, std::ranges::max_element(run.ranks, {}, &RankHistory::seen_ns)->seen_ns);
}

std::string ended_at(const RunHistory& run) {
  const int64_t step = last_step(run);
  return step == 0 ? "the job ended before its first step: " : fmt::format("the job ended at step {}: ", step);
}

// Ranks that wait in the newest awaited collective, but for ranks of the cause.
Ranks ranks_waiting_for(const RunHistory& run, const Ranks& cause) {
  uint64_t newest = 0;
  Ranks waiting;
  for (const RankHistory& rank : run.ranks) {
    if (!rank.waits_in || std::ranges::count(cause, rank.rank) > 0 || awaited_by(rank) < newest) continue;
    if (awaited_by(rank) > newest) waiting.clear();
    newest = awaited_by(rank);
    waiting.push_back(rank.rank);
  }
  return waiting;
}

// "; rank 0 waited for it in collective 15342 (node_barrier)"
std::string who_waited(const RunHistory& run, const FirstCause& cause) {
  if (cause.waiting.empty()) return "";
  const BlackBoxEvent& collective = *of(run, cause.waiting[0]).waits_in;
  return fmt::format("; {} waited for {} in collective {:.0f} ({})", list_ranks(cause.waiting),
                     cause.ranks.size() == 1 ? "it" : "them", collective.value, legible(name_of(collective)));
}

// Where clocks of nodes could not be compared.
std::string by_the_clocks(const RunHistory& run) {
  const bool is_aligned = std::ranges::all_of(
      run.ranks, [](const RankHistory& rank) { return rank.end == RankEnd::kUnknown || rank.clock_ahead_ns; });
  return run.has_several_hosts() && !is_aligned ? ", by the clocks of the nodes" : "";
}

// The newest collective in which a rank waits.
uint64_t newest_awaited(const RunHistory& run) {
  return awaited_by(*std::ranges::max_element(run.ranks, {}, awaited_by));
}

// Ranks at work hold up the others; without any, ranks that have not begun the newest awaited collective do.
Ranks ranks_behind(const RunHistory& run, const Ranks& ranks) {
  const uint64_t newest = newest_awaited(run);
  Ranks at_work = filtered(run, ranks, [](const RankHistory& rank) { return !rank.waits_in; });
  if (!at_work.empty() && newest > 0) return at_work;
  return filtered(run, ranks, [&](const RankHistory& rank) { return rank.begun < newest; });
}

// Ranks that had not answered at the time of the first report of a watchdog. All later events have been left out. A
// rank that lived after it and waited in the newest collective by then is none of them: it had reported, and took its
// report back when the end of the job woke the stopped rank. A stopped rank may fail once it is woken.
Ranks silent_by_events(const RunHistory& run, int64_t report_ns) {
  Ranks silent = run.with(RankEnd::kGone);
  for (const RankHistory& rank : run.ranks) {
    const bool has_failed_later = rank.end == RankEnd::kFailed && rank.beat_ns > report_ns && !rank.waits_in;
    if (rank.end == RankEnd::kRunning || has_failed_later) silent.push_back(rank.rank);  // running: as by SIGSTOP
  }
  const uint64_t newest = newest_awaited(run);
  const Ranks held_up = filtered(run, silent, [&](const RankHistory& rank) {
    return rank.beat_ns <= report_ns || !rank.waits_in || rank.begun < newest;
  });
  return held_up.empty() ? silent : held_up;
}

// As the report names them (who_is_missing()): a rank stopped in a collective looks by its events like a rank that had
// reported. The box cuts a long report off.
Ranks silent_at(const RunHistory& run, const std::string& report, int64_t report_ns) {
  const auto says = [&report](const std::string& part) { return report.find(part) != std::string::npos; };
  const bool names_all = says(" does not answer") && says("\n  stacks ");
  const Ranks by_events = names_all ? Ranks() : silent_by_events(run, report_ns);
  Ranks silent;
  for (const RankHistory& rank : run.ranks) {
    const bool is_named = says(fmt::format("\n  rank {} does not answer", rank.rank));
    if (is_named || std::ranges::count(by_events, rank.rank) > 0) silent.push_back(rank.rank);
  }
  return silent;
}

std::string output_unread(const RankHistory& rank) { return rank.output_unread ? ": its output was not read" : ""; }

FirstCause cause_of(const RunHistory& run, Kind kind, const Ranks& ranks, int64_t unix_ns) {
  return {.kind = kind, .ranks = ranks, .waiting = ranks_waiting_for(run, ranks), .unix_ns = unix_ns};
}

FirstCause failure(const RunHistory& run, int first) {
  const RankHistory& failed = of(run, first);
  const bool is_alone = run.ranks.size() == 1;
  // Where there are several ranks, their launcher reads the output.
  if (!is_alone && failed.exit_code == 128 + SIGPIPE && failed.error.starts_with("its output was not read")) {
    FirstCause cause{.kind = Kind::kUnclear, .unix_ns = failed.ended_ns};
    cause.line = fmt::format(
        "{}the launcher of the ranks, such as mpirun, was killed or ended: nobody read the output "
        "of rank {} any more (SIGPIPE)",
        ended_at(run), first);
    return cause;
  }
  // An error of communication may be the echo of a rank that died. Ranks that waited for the failed rank are its echo.
  if (failed.exit_code == static_cast<int>(ExitCode::kComm)) {
    const Ranks silent = filtered(run, run.with(RankEnd::kGone), [&](const RankHistory& rank) {
      const bool waited =
          rank.waits_in && awaited_by(rank) >= (failed.waits_in ? awaited_by(failed) : failed.unfinished);
      return rank.seen_ns < failed.ended_ns && !waited;
    });
    if (!silent.empty()) {
      const int rank = earliest(run, silent, [](const RankHistory& one) { return one.seen_ns; });
      const RankHistory& gone = of(run, rank);
      const Ranks together =
          filtered(run, silent, [&](const RankHistory& one) { return one.seen_ns < gone.seen_ns + kApartNs; });
      FirstCause cause = cause_of(run, Kind::kGone, is_node(run, together) ? together : Ranks{rank}, gone.seen_ns);
      cause.line = fmt::format("{} was killed (no end mark) {}, {:.1f} s before rank {} failed{}: {}",
                               name_ranks(run, cause.ranks), where(gone), to_seconds(failed.ended_ns - gone.seen_ns),
                               first, by_the_clocks(run), error_of(failed));
      return cause;
    }
  }
  FirstCause cause = cause_of(run, Kind::kFailed, {first}, failed.ended_ns);
  const auto decided_with_it = [&](const RankHistory& rank) {
    return rank.end == RankEnd::kFailed && rank.step == failed.step && rank.error == failed.error;
  };
  if (!is_alone && std::ranges::all_of(run.ranks, decided_with_it)) {
    cause.ranks = run.with(RankEnd::kFailed);
    cause.waiting = {};
    cause.line = fmt::format("all ranks ended together in step {}: {}", failed.step, error_of(failed));
    return cause;
  }
  cause.line = fmt::format("rank {} failed{} {}{}: {}", first, is_alone ? "" : " first", where(failed),
                           is_alone ? "" : by_the_clocks(run), error_of(failed));
  return cause;
}

// Ranks that wait in a collective begun by all ranks, while another rank has passed it. Between nodes, a message did
// not arrive there; on one node, such a rank stands still itself.
Ranks ranks_cut_off(const RunHistory& run, const Ranks& behind) {
  const auto begun_by_all = [&](const RankHistory& waiting) {
    return waiting.waits_in && std::ranges::all_of(run.ranks, [&](const RankHistory& rank) {
             return rank.waits_in && rank.begun >= awaited_by(waiting);
           });
  };
  return run.has_several_hosts() ? filtered(run, behind, begun_by_all) : Ranks();
}

// `reporter`: the rank whose watchdog gave up first.
FirstCause hang(const RunHistory& run, const RankHistory& reporter, int64_t ended_ns) {
  const Ranks ended = run.with(RankEnd::kHang);
  FirstCause cause{.kind = Kind::kHang, .ranks = silent_at(run, reporter.error, ended_ns), .unix_ns = ended_ns};
  const bool has_answered = cause.ranks.empty();
  if (cause.ranks.empty()) cause.ranks = ranks_behind(run, ended);
  if (const Ranks cut_off = ranks_cut_off(run, cause.ranks); has_answered && !cut_off.empty()) {
    const BlackBoxEvent& collective = *of(run, cut_off[0]).waits_in;
    cause.ranks = {};
    cause.waiting = cut_off;
    cause.line = fmt::format(
        "{}the network between the nodes hung, no rank was missing: {} waited in collective {:.0f} ({}), which all "
        "ranks had begun",
        ended_at(run), name_ranks(run, cut_off), collective.value, legible(name_of(collective)));
    return cause;
  }
  if (cause.ranks.empty()) cause.ranks = run.with(RankEnd::kUnknown);
  if (cause.ranks.empty()) cause.ranks = filtered(run, ended, [](const RankHistory& rank) { return !rank.waits_in; });
  cause.waiting = ranks_waiting_for(run, cause.ranks);
  if (cause.ranks.empty()) {
    const BlackBoxEvent& collective = *of(run, ended[0]).waits_in;
    cause.line = fmt::format("{}all ranks waited in collective {:.0f} ({}), none was missing: the {} hung",
                             ended_at(run), collective.value, legible(name_of(collective)),
                             run.has_several_hosts() ? "network between the nodes" : "transport");
    return cause;
  }
  const int first = earliest(run, cause.ranks, [](const RankHistory& rank) { return rank.last_event_ns; });
  const RankHistory& history = of(run, first);
  if (history.last_event_ns > 0) cause.unix_ns = history.last_event_ns;
  const std::string place = history.end == RankEnd::kUnknown ? "" : " " + where(history);
  cause.line = fmt::format("{}{} {}{}{}{}", ended_at(run), name_ranks(run, cause.ranks),
                           has_answered && !place.empty() ? "stood still" : "stopped answering", place,
                           output_unread(history), who_waited(run, cause));
  return cause;
}

// No rank says why it ended.
FirstCause silence(const RunHistory& run) {
  const Ranks gone = run.with(RankEnd::kGone);
  const Ranks unread =
      filtered(run, gone, [](const RankHistory& rank) { return rank.output_unread && !rank.waits_in; });
  if (!unread.empty()) {
    const RankHistory& first = of(run, unread[0]);
    FirstCause cause = cause_of(run, Kind::kHang, {first.rank}, first.last_event_ns);
    cause.line = fmt::format("{}{} stood still {}{}{}", ended_at(run), name_rank(run, first.rank), where(first),
                             output_unread(first), who_waited(run, cause));
    return cause;
  }
  const int64_t last_ns = last_seen(run);
  const Ranks before = filtered(
      run, gone, [&](const RankHistory& rank) { return rank.beat_ns > 0 && rank.seen_ns + kApartNs < last_ns; });
  const bool is_alone = run.ranks.size() == 1;
  if (!before.empty() || is_alone) {
    const int first = is_alone ? 0 : earliest(run, before, [](const RankHistory& rank) { return rank.seen_ns; });
    const int64_t seen_ns = of(run, first).seen_ns;
    Ranks ranks = {first};
    if (!is_alone) {  // a node takes all its ranks along
      ranks = filtered(run, before, [&](const RankHistory& rank) { return rank.seen_ns < seen_ns + kApartNs; });
    }
    FirstCause cause = cause_of(run, Kind::kGone, ranks, seen_ns);
    const std::string lead = is_alone ? fmt::format("; its last sign of life was at {}", time_text(seen_ns))
                                      : fmt::format(", {:.1f} s before the last sign of life of the others{}",
                                                    to_seconds(last_ns - seen_ns), by_the_clocks(run));
    cause.line = fmt::format("{}{} {} killed (no end mark) {}{}{}", ended_at(run), name_ranks(run, cause.ranks),
                             cause.ranks.size() == 1 || is_node(run, cause.ranks) ? "was" : "were",
                             where(of(run, first)), lead, who_waited(run, cause));
    return cause;
  }
  FirstCause cause{.kind = Kind::kUnclear, .unix_ns = last_ns};
  const bool is_all = gone.size() == run.ranks.size();
  cause.line = fmt::format("{}{} {} killed at once (no end mark), as the end of a job or of mpirun does; {}{}",
                           ended_at(run), is_all ? "all ranks" : list_ranks(gone),
                           is_all || gone.size() > 1 ? "were" : "was", "last sign of life: ", time_text(last_ns));
  if (const Ranks unknown = run.with(RankEnd::kUnknown); !unknown.empty()) {
    cause.line += fmt::format("; {} left no black box that can be read, and may have gone first", list_ranks(unknown));
  }
  return cause;
}

std::string stop_line(const RunHistory& run) {
  const std::string& by = of(run, run.with(RankEnd::kPreempted)[0]).stopped_by;  // all ranks know it
  return fmt::format("stopped {}, with a checkpoint (exit code {})", by.empty() ? "early" : "by " + by,
                     static_cast<int>(ExitCode::kPreempted));
}

}  // namespace

const char* name(FirstCause::Kind kind) {
  constexpr const char* kNames[] = {"done", "stopped", "running", "failed", "gone", "hang", "unclear"};
  return kNames[static_cast<size_t>(kind)];
}

std::string time_text(int64_t unix_ns) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S %Z}", fmt::localtime(static_cast<std::time_t>(unix_ns / 1'000'000'000)));
}

FirstCause find_first_cause(const RunHistory& run) {
  const auto count = [&](RankEnd end) { return run.with(end).size(); };
  const size_t known = run.ranks.size() - count(RankEnd::kUnknown);
  FirstCause cause;
  cause.unix_ns = last_seen(run);
  if (known == 0) {
    cause.line = "no black box of this run can be read";
    return cause;
  }
  const auto ended = [](const RankHistory& rank) { return rank.ended_ns > 0 ? rank.ended_ns : rank.seen_ns; };
  const Ranks failed = run.with(RankEnd::kFailed), hung = run.with(RankEnd::kHang);
  if (!failed.empty() || !hung.empty()) {
    const int failure_rank = failed.empty() ? -1 : earliest(run, failed, ended);
    const int hung_rank = hung.empty() ? -1 : earliest(run, hung, ended);
    const bool failed_first =
        hung.empty() || (failure_rank >= 0 && ended(of(run, failure_rank)) <= ended(of(run, hung_rank)));
    if (failed_first) return failure(run, failure_rank);
    return hang(run, of(run, hung_rank), ended(of(run, hung_rank)));
  }
  if (count(RankEnd::kGone) > 0) return silence(run);
  if (count(RankEnd::kRunning) > 0) {
    cause.kind = Kind::kRunning;
    cause.line = fmt::format("still running, in step {}", last_step(run));
  } else if (count(RankEnd::kPreempted) > 0) {
    cause.kind = Kind::kStopped;
    cause.line = stop_line(run);
  } else {
    cause.kind = Kind::kDone;
    cause.line = "done: exit code 0";
  }
  return cause;
}

}  // namespace mantissa
