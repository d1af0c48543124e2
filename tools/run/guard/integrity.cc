#include "tools/run/guard/integrity.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/profile/range.h"

namespace mantissa {
IntegrityGuard::IntegrityGuard(const IntegrityConfig& config, ShardedState& state) : config_(config), state_(state) {
  if (state.optimizer.has_digests() && state.backend.computes()) check_.emplace(state);
}

bool IntegrityGuard::is_due(int64_t step) const {
  return state_.backend.computes() && (checks_wire() || checks(step) || replays(step));
}

std::vector<Corruption> IntegrityGuard::examine(int64_t step) {
  const Range range(RangeKind::kPhase, "integrity");
  std::vector<Corruption> findings = state_.reducer.compare_digests();
  if (!checks(step)) return findings;
  const std::vector<Corruption> weights = check_->weights();
  findings.insert(findings.end(), weights.begin(), weights.end());
  return findings;
}

void IntegrityGuard::after_passes(int64_t step, const std::function<void()>& run_again) {
  std::vector<Corruption> findings = examine(step);
  if (!findings.empty()) {
    warn(fmt::format("step {}: silent corruption: {}", step + 1, describe(findings)));
    if (std::ranges::count(findings, CorruptData::kWorkingWeight, &Corruption::data) > 0) recompute_weights();
    run_again();
    findings = examine(step);
    if (findings.empty()) {
      warn(fmt::format("step {}: its passes ran again, without a finding: the corruption was transient", step + 1));
    } else {
      stop(step, findings, " again after the passes of the step ran once more");
    }
  }
  if (replays(step)) replay(step, run_again);
}

void IntegrityGuard::replay(int64_t step, const std::function<void()>& run_again) {
  const std::vector<Digest> first = check_->gradients();
  run_again();
  const std::vector<Digest> second = check_->gradients();
  const std::vector<Corruption> findings = check_->differences(first, second);
  if (findings.empty()) return;
  warn(fmt::format("step {}: two runs of its passes differ: {}", step + 1, describe(findings)));
  run_again();
  const std::vector<Digest> third = check_->gradients();
  const bool second_is_right = check_->differences(second, third).empty();
  const bool first_is_right = check_->differences(first, third).empty();
  if (first_is_right || second_is_right) {
    warn(fmt::format("step {}: a third run agrees with the {}: the fault was transient", step + 1,
                     first_is_right ? "first" : "second"));
  } else {
    stop(step, findings, ": three runs of the same passes differ, so the fault is persistent");
  }
}

void IntegrityGuard::after_step(int64_t step) {
  if (!checks(step)) return;
  const Range range(RangeKind::kPhase, "integrity");
  const std::vector<Corruption> findings = check_->updates();
  if (!findings.empty()) stop(step + 1, findings, "");
}

void IntegrityGuard::at_rest(int64_t steps) {
  if (!check_) return;
  const Range range(RangeKind::kPhase, "integrity");
  std::vector<Corruption> findings = check_->at_rest();
  if (findings.empty()) return;
  const auto is_of_state = [](const Corruption& found) { return found.data < CorruptData::kWorkingWeight; };
  if (std::ranges::none_of(findings, is_of_state)) {
    warn(fmt::format("after step {}: silent corruption: {}", steps, describe(findings)));
    recompute_weights();
    findings = check_->at_rest();
    if (findings.empty()) return;
  }
  stop(steps, findings, "");
}

std::string IntegrityGuard::describe(const std::vector<Corruption>& findings) const {
  constexpr size_t kShown = 4;
  const std::vector<std::string> hosts = all_gather_texts(state_.communicator, host_name());
  std::string text;
  for (size_t i = 0; i < std::min(kShown, findings.size()); ++i) {
    text += (i > 0 ? "; " : "") + to_text(findings[i], state_.parameters(), hosts);
  }
  if (findings.size() > kShown) text += fmt::format("; and {} more", findings.size() - kShown);
  return text;
}

void IntegrityGuard::warn(const std::string& text) const {
  if (state_.communicator.rank() == 0) log_warn("{}", text);
}

void IntegrityGuard::recompute_weights() {
  warn("the working weights are computed again from the masters");
  state_.optimizer.recompute_weights();
}

void IntegrityGuard::stop(int64_t steps, const std::vector<Corruption>& findings, const std::string& more) {
  const std::string text = fmt::format("silent data corruption after step {}{}: {}", steps, more, describe(findings));
  if (config_.action == IntegrityAction::kStop) {
    throw CorruptionError(text +
                          ". The state is not saved; a new start continues from the newest checkpoint. Test the memory "
                          "of that host, or leave it out");
  }
  warn(text + "; integrity.action: warn goes on with it");
  if (!check_) return;
  // Replicas that differ would be found again in each check, and their weights would drift apart.
  if (const std::string united = check_->unite(findings); !united.empty()) warn(united);
  state_.optimizer.accept_state();
}

}  // namespace mantissa
