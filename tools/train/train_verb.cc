#include "tools/train/train_verb.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/train/adaptive_state.h"
#include "tools/train/gathered_codes.h"
#include "tools/train/job.h"
#include "tools/train/launch.h"
#include "tools/train/memory_table.h"
#include "tools/train/run_folder.h"
#include "tools/train/state_handover.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

void announce(const Config& config, const Session& session, int threads) {
  if (config.device == "auto" && !session.device.reason.empty()) {
    log_info("device: auto takes the {}: {}", session.device.backend, session.device.reason);
  }
  log_info("model {}: {} layers, width {}, {:.2f}M parameters | {} | {} ranks ({}) x {} threads", config.model.name,
           config.model.layers, config.model.width, static_cast<double>(session.runtime.parameters.numel()) * 1e-6,
           session.runtime.backend->describe(), session.ranks(), session.communicator.name(), threads);
  log_info("data: {} files, {} training tokens in {} windows, {} validation tokens", session.data.files(),
           session.data.train_tokens(), session.data.train_windows(), session.data.validation_tokens());
  log_info(
      "precision: compute {}, wire {}, loss scaler {} | batch: {} sequences of {} = {} ranks x {} micro-batches x {}",
      config.precision.compute, config.comm.reducer.wire, name(config.scaler.scaler.mode), config.train.global_batch,
      config.model.context, session.ranks(), session.micro_batches(), config.train.micro_batch);
  if (session.ranks() == 1) return;
  log_info("between ranks: gradients {}, weights {}",
           session.reducer.path() == ContributionPath::kInPlace ? "are summed where they lie, in shared memory"
                                                                : "are exchanged shard by shard",
           config.comm.reducer.sharding == Sharding::kReplicated ? "are updated by every rank"
           : session.buckets.weights_in_common()                 ? "have one copy in common"
                                                                 : "are gathered");
  if (const std::string gather = gather_summary(config, session.buckets, session.runtime.policy); !gather.empty())
    log_info("{}", gather);
}

void warn_of_phases_behind_the_end(const Config& run) {
  for (int phase = 1; phase < phase_count(run); ++phase) {
    if (phase_begin(run, phase) < run.train.steps) continue;
    log_warn("{} begins after step {}, and train.steps = {}: it is never reached", phase_name(run, phase),
             phase_begin(run, phase), run.train.steps);
  }
}

// What one session hands on to the next.
struct Handover {
  HeldState held;
  nlohmann::json trainer;
  PrecisionSwitch why;

  int64_t step() const { return held.numbers().next_step; }
};

// Where a training comes from: a session before, a checkpoint, or neither.
struct Origin {
  std::optional<Handover> before{};
  std::optional<ResumePoint> checkpoint{};

  int64_t step() const { return before ? before->step() : checkpoint ? checkpoint->step : 0; }
  nlohmann::json trainer() const { return before ? before->trainer : checkpoint ? checkpoint->run : nlohmann::json(); }
};

// What another phase changes of the settings, behind what the trainer says of it.
PrecisionSwitch with_changes(const Config& run, int before, int after, PrecisionSwitch why) {
  const std::vector<std::string> changes = training_differences(in_phase(run, before), in_phase(run, after));
  why.changes.insert(why.changes.end(), changes.begin(), changes.end());
  return why;
}

// Trains in one precision. Nothing where the training ends with it.
std::optional<Handover> train_on(const Config& run, const Origin& origin, int threads, const RunFolder* folder,
                                 Communicator& communicator) {
  const int phase = phase_of(run, origin.step(), origin.trainer());
  const Config config = with_lifts(in_phase(run, phase), fallback_from(run, origin.trainer()));
  Session session(config, communicator);
  // What is wrong is told before session and trainer go: their end waits for the device, where the work that failed may
  // hang.
  std::optional<TrainingCheckpoints> checkpoints;
  std::optional<Trainer> trainer;
  try {
    checkpoints.emplace(session, run);
    TrainerStart start{.state = origin.trainer(), .adaptive = adaptive_from(run, origin.step(), origin.trainer())};
    if (origin.before) {
      origin.before->held.hand_over(session);
      start.by_switch = origin.before->why;
    } else {
      announce(config, session, threads);
      warn_of_phases_behind_the_end(run);
      if (origin.checkpoint) checkpoints->resume(*origin.checkpoint);
      if (folder != nullptr) folder->write_config(run);  // only now: a start that was refused leaves the run as it was
    }
    trainer.emplace(session, *checkpoints, start);
    const int64_t last = Trainer::last_step(run), end = std::min(phase_end(run, phase), last);
    std::optional<PrecisionSwitch> why = trainer->run(end);
    if (session.next_step >= last) {
      trainer->finish();
      return std::nullopt;
    }
    trainer->leave();
    nlohmann::json state = trainer->state();
    const int next = phase_of(run, session.next_step, state);
    if (!why) why = PrecisionSwitch{.cause = phase_path(run, next)};
    if (next != phase) why = with_changes(run, phase, next, std::move(*why));
    return Handover{.held = HeldState(session), .trainer = std::move(state), .why = std::move(*why)};
  } catch (const std::exception& exception) {
    leave_job(exception, communicator);
  }
}

void train(const Config& config, Communicator& communicator) {
  require_same_configuration(config, communicator);  // the whole schedule; sessions see one phase of it
  validate_for_ranks(config, communicator.size());
  const int threads = set_up_threads(config, communicator);
  // What the model refuses, in any phase, is refused before there is a folder.
  const auto predicted = predict_memory_tables(config, communicator.size(), expected_path(config, communicator));
  std::optional<RunFolder> folder;
  if (communicator.rank() == 0) folder.emplace(config.train.run_dir);
  Origin origin{.checkpoint = find_resume_point(config, communicator)};
  log_info("memory of a rank, predicted:{}",
           to_text(predicted[static_cast<size_t>(phase_of(config, origin.step(), origin.trainer()))]));
  while ((origin.before = train_on(config, origin, threads, folder ? &*folder : nullptr, communicator))) {
  }
}

}  // namespace

int train_verb(const std::string& config_path, const std::vector<std::string>& overrides) {
  return run_job([&] { return load_config(config_path, overrides); }, train);
}

}  // namespace mantissa
