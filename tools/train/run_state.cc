#include "tools/train/run_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "amp/autocast_policy.h"
#include "core/base/log.h"
#include "core/io/optional_json.h"
#include "tools/config/precision_phases.h"
#include "tools/train/checkpoint_files.h"
#include "tools/train/dry_run.h"

namespace mantissa {

void to_json(nlohmann::json& j, const BadSignal& bad) {
  j = {{"signal", bad.signal}, {"step", bad.step}, {"value", bad.value}, {"threshold", bad.threshold}};
}

static void from_json(const nlohmann::json& j, BadSignal& bad) {
  const nlohmann::json& value = j.at("value");
  bad = {.signal = j.at("signal"),
         .step = j.at("step"),
         .value = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>(),
         .threshold = j.at("threshold")};
}

void to_json(nlohmann::json& j, const RollbackPoint& point) { j = {{"step", point.step}, {"folder", point.folder}}; }

void from_json(const nlohmann::json& j, RollbackPoint& point) {
  point = {.step = j.at("step"), .folder = j.at("folder")};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AdaptivePrecision::State, level, highest, switches, returns, raised, changed_at,
                                   uneasy_at, losses, norms, skips, best_validation, stalled, bad)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SpikeDetector::Sample, step, loss, norm)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PrecisionFallback::Layer, levels, returns, since, overflows)

namespace {

ScalerMode scaler_mode(const std::string& word) {
  return word == "dynamic" ? ScalerMode::kDynamic : word == "static" ? ScalerMode::kStatic : ScalerMode::kNone;
}

// The gradient prescale of the ranks and micro-batches that saved.
int saved_prescale_log2(const nlohmann::json& manifest) {
  const TrainConfig saved = parse_config(manifest.at("config").get<std::string>(), "the checkpoint's config").train;
  const int64_t ranks = manifest.at("ranks");
  return gradient_prescale_log2(ranks, saved.global_batch / (saved.micro_batch * ranks));
}

}  // namespace

double TrainingState::gradient_factor() const {
  return std::ldexp(static_cast<double>(scaler.scale), gradient_prescale_log2);
}

TrainingState state_of(const Session& session) {
  return {.next_step = session.next_step,
          .applied_steps = session.sharded.optimizer.applied_steps(),
          .scaler = session.scaler.state(),
          .gradient_prescale_log2 = gradient_prescale_log2(session.ranks(), session.micro_batches()),
          .clip_norms = session.clipper.state(),
          .spike_window = session.spikes.state(),
          .skipped_batches = session.skipped_batches};
}

nlohmann::json to_json(const TrainingState& state) {
  return {{"next_step", state.next_step},
          {"applied_steps", state.applied_steps},
          {"scaler",
           {{"mode", name(state.scaler.mode)},
            {"scale", state.scaler.scale},
            {"clean_steps", state.scaler.clean_steps},
            {"hysteresis_left", state.scaler.hysteresis_left}}},
          {"clip_norms", state.clip_norms},
          {"spike_window", state.spike_window},
          {"skipped_batches", state.skipped_batches}};
}

TrainingState training_state_from(const nlohmann::json& manifest) {
  const nlohmann::json& scaler = manifest.at("scaler");
  return {.next_step = manifest.at("next_step"),
          .applied_steps = manifest.at("applied_steps"),
          .scaler = {.mode = scaler_mode(scaler.at("mode")),
                     .scale = scaler.at("scale"),
                     .clean_steps = scaler.at("clean_steps"),
                     .hysteresis_left = scaler.at("hysteresis_left")},
          .gradient_prescale_log2 = saved_prescale_log2(manifest),
          .clip_norms = manifest.at("clip_norms").get<std::vector<double>>(),
          .spike_window = manifest.value("spike_window", std::vector<SpikeDetector::Sample>()),
          .skipped_batches = manifest.value("skipped_batches", int64_t{0})};
}

void continue_from(const TrainingState& state, Session& session) {
  if (!session.scaler.load_state(state.scaler)) {
    log_info("the loss scaler was in mode '{}' and is in '{}' now: it starts afresh", name(state.scaler.mode),
             name(session.scaler.config().mode));
  }
  session.clipper.restore(state.clip_norms);
  session.spikes.restore(state.spike_window);
  session.skipped_batches = state.skipped_batches;
  session.next_step = state.next_step;
}

void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session) {
  session.runtime.delayed_scales->load_state(scales, state_of(session).gradient_factor() / state.gradient_factor());
}

RunState::RunState(const Config& run, int64_t steps_done) : fallback(run.precision_fallback) {
  if (adapts(run)) adaptive.emplace(run.precision_adaptive.options, phase_count(run), steps_done);
}

nlohmann::json to_json(const RunState& state) {
  nlohmann::json saved = {{"statistics", state.statistics},
                          {"faults_in_a_row", state.faults_in_a_row},
                          {"skips_in_a_row", state.skips_in_a_row},
                          {"spikes_in_a_row", state.spikes_in_a_row},
                          {"rollbacks", state.rollbacks},
                          {"fallback", state.fallback.state()},
                          {"first_validation_loss", state.first_validation_loss}};
  if (state.adaptive) saved["adaptive"] = state.adaptive->state();
  return saved;
}

RunState run_state_from(const Config& run, int64_t steps_done, const nlohmann::json& saved) {
  RunState state(run, steps_done);
  saved.at("statistics").get_to(state.statistics);
  saved.at("faults_in_a_row").get_to(state.faults_in_a_row);
  state.skips_in_a_row = saved.value("skips_in_a_row", 0);
  state.spikes_in_a_row = saved.value("spikes_in_a_row", 0);
  state.rollbacks = saved.value("rollbacks", 0);
  state.proven_step = saved.value("proven_step", int64_t{-1});
  state.rollback_point = saved.value("rollback_point", std::optional<RollbackPoint>());
  saved.at("first_validation_loss").get_to(state.first_validation_loss);
  if (saved.contains("fallback")) {
    state.fallback = PrecisionFallback(run.precision_fallback, saved.at("fallback").get<PrecisionFallback::State>());
  }
  if (state.adaptive && saved.contains("adaptive")) {
    state.adaptive.emplace(run.precision_adaptive.options, phase_count(run),
                           saved.at("adaptive").get<AdaptivePrecision::State>());
  }
  return state;
}

Config with_lifts(Config phase, const PrecisionFallback& fallback) {
  if (fallback.leaves_fp16()) {
    phase.precision.leave_fp16();
    phase.resolve_scaler_mode();
  }
  const auto lifts = fallback.lifts();
  if (lifts.empty()) return phase;
  const AutocastPolicy policy(phase.precision_rules());
  for (const PlacedOp& placed : ops_of(phase)) {
    const auto lift = lifts.find(placed.layer);
    if (lift == lifts.end() || (placed.op != Op::kLinear && placed.op != Op::kAttention)) continue;
    for (PrecisionRule& rule : lift_rules(placed.layer, placed.op, policy.at(placed.layer), lift->second)) {
      phase.precision.rules.push_back(std::move(rule));
    }
  }
  return phase;
}

int phase_of(const Config& run, int64_t steps_done, const RunState& state) {
  return state.adaptive ? state.adaptive->level() : phase_at(run, steps_done);
}

Config config_of(const Config& run, int64_t steps_done, const nlohmann::json& saved) {
  return in_phase(run, phase_of(run, steps_done, run_state_from(run, steps_done, saved)));
}

namespace {

class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(std::vector<std::byte>& out) : out_(out) {}
  void write(std::span<const std::byte> bytes) override { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

 private:
  std::vector<std::byte>& out_;
};

}  // namespace

HeldState::HeldState(Session& session) : numbers_(state_of(session)) {
  session.sharded.optimizer.restore_weights();
  if (const DelayedScales& scales = *session.runtime.delayed_scales; !scales.empty()) scales_ = scales.state();
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
    MemorySink sink(pieces_.emplace_back());
    write_optimizer_pieces(sink, {piece}, *session.runtime.backend, *session.runtime.stream);
  }
}

void HeldState::hand_over(Session& session) const {
  Communicator& communicator = session.communicator;
  ShardedOptimizer& optimizer = session.sharded.optimizer;
  optimizer.begin_load();
  const auto counts = all_gather_records(communicator, static_cast<uint64_t>(pieces_.size()));
  const size_t rounds = *std::max_element(counts.begin(), counts.end());
  for (size_t round = 0; round < rounds; ++round) {
    const auto mine =
        round < pieces_.size() ? std::span<const std::byte>(pieces_[round]) : std::span<const std::byte>();
    for (const std::vector<std::byte>& piece : all_gather_varied(communicator, mine)) {
      if (piece.empty()) continue;
      load_optimizer_pieces(SafetensorsReader("state that is handed over", piece), session.runtime.parameters,
                            optimizer);
    }
  }
  optimizer.end_load(numbers_.applied_steps);
  continue_from(numbers_, session);
  if (!session.runtime.delayed_scales->empty() && !scales_.names.empty()) continue_scales(numbers_, scales_, session);
}

}  // namespace mantissa
