// Observers of `mantissa train` beside its log: checkpoints, scores, the black box, slow ranks.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/profile/range.h"
#include "tools/model/evaluate/scorer.h"
#include "tools/run/guard/black_box.h"
#include "tools/run/guard/outliers.h"
#include "tools/train/checkpoint.h"
#include "tools/train/run_log.h"

namespace mantissa {

// Saves checkpoints while a training runs.
class Saver final : public TrainObserver {
 public:
  // `folder`: on rank 0. `unsaved_step`: the last step of the run, if its state could not be saved.
  Saver(Session& session, const Config& run, RunState& state, const Start& start, RunFolder* folder,
        std::shared_ptr<RunLog> log, BlackBox& box, std::optional<int64_t>& unsaved_step)
      : checkpoints_(session, run, folder),
        box_(box),
        interval_(run.checkpoint.interval),
        log_(std::move(log)),
        saved_step_(start.checkpoint() != nullptr ? session.next_step : -1),
        unsaved_step_(unsaved_step) {
    if (saved_step_ >= 0 && state.proven_step < 0) state.proven_step = saved_step_;  // there may be no other
  }

  // Checkpoints of a failing run must not push out the last good checkpoint.
  void after_step(Trainer& trainer, const StepReport& step) override {
    if (!step.applied || saved_step_ < 0 || step.step < saved_step_) return;
    trainer.state().proven_step = saved_step_;
  }

  bool pauses_after(int64_t steps) const override { return is_due(interval_, steps); }
  void at_pause(Trainer& trainer) override { save(trainer); }
  void at_end(Trainer& trainer, Ending ending) override {
    const int64_t step = trainer.session().next_step;
    if (ending == Ending::kCorrupt) return log_restart();
    if (ending == Ending::kDone && interval_ < 0) {
      log_info("the last state is not saved: checkpoint.interval is -1");
      return log_->unsaved();
    }
    if (saved_step_ != step && !save(trainer)) {
      unsaved_step_ = step;
      log_->unsaved();
    }
    if (ending == Ending::kFailed && saved_step_ >= 0) log_info("a new start continues after step {}", saved_step_);
  }

 private:
  void log_restart() const {
    if (saved_step_ < 0) return log_info("this start has saved no checkpoint: a new one takes the newest there is");
    log_info("the state is corrupt and not saved; a new start continues after step {}", saved_step_);
  }
  bool save(Trainer& trainer) {
    if (const Range range(RangeKind::kPhase, "checkpoint"); !checkpoints_.save(trainer.state())) return false;
    saved_step_ = trainer.session().next_step;
    log_->saved(trainer.session());
    box_.note(BlackBoxEvent::Kind::kSaved, "checkpoint");
    return true;
  }

  TrainingCheckpoints checkpoints_;
  BlackBox& box_;
  const int64_t interval_;
  const std::shared_ptr<RunLog> log_;
  int64_t saved_step_;
  std::optional<int64_t>& unsaved_step_;
};

// One of train.evaluations, read: a task or a text.
struct RunEvaluation {
  std::string name;  // of the task or file; the path where two have the same
  int64_t interval = 0;
  std::optional<Task> task{};
  ScoredText text{};
};
using RunEvaluationList = std::shared_ptr<const std::vector<RunEvaluation>>;

inline RunEvaluation read_evaluation(const EvaluationConfig& wanted, const Config& run, const TextCodec& codec) {
  const auto limit = static_cast<size_t>(wanted.limit);
  if (!wanted.tasks.empty()) {
    Task task = read_task(wanted.tasks, codec, run.model);
    if (limit > 0 && task.questions.size() > limit) task.questions.resize(limit);
    require_fitting(task, run.model.context);
    return {.name = task.name, .interval = wanted.interval, .task = std::move(task)};
  }
  ScoredText text = read_scored_text(wanted.text, codec, run.model);
  const size_t tokens = limit * static_cast<size_t>(run.model.context) + 1;
  if (limit > 0 && text.tokens.size() > tokens) text = {.tokens = {text.tokens.begin(), text.tokens.begin() + tokens}};
  return {
      .name = std::filesystem::path(wanted.text).stem().string(), .interval = wanted.interval, .text = std::move(text)};
}

// Reads all files. `model`: the run or weights whose tokenizer counts, unless empty. DataError, alike on all ranks.
// Collective.
inline RunEvaluationList read_evaluations(const Config& run, const std::string& model, Communicator& communicator) {
  const auto list = std::make_shared<std::vector<RunEvaluation>>();
  if (run.train.evaluations.empty()) return list;
  run_on_all<DataError>(communicator, "train.evaluations: ", [&] {
    const TextCodec codec(model, run);
    for (const EvaluationConfig& wanted : run.train.evaluations) {
      RunEvaluation read = read_evaluation(wanted, run, codec);
      const auto has_name = [&read](const RunEvaluation& other) { return other.name == read.name; };
      if (std::ranges::any_of(*list, has_name)) read.name = read.task ? wanted.tasks : wanted.text;
      list->push_back(std::move(read));
    }
  });
  return list;
}

// Scores the model before the first step, at each interval, and at the end. Passes have the shape of a micro-batch;
// ranks share them.
class RunEvaluations final : public TrainObserver {
 public:
  // `session` must outlive the object.
  RunEvaluations(Session& session, RunEvaluationList list, std::shared_ptr<RunLog> log)
      : list_(std::move(list)),
        log_(std::move(log)),
        scorer_(session.runtime, session.config.train.micro_batch, session.config.model.context,
                &session.communicator) {}

  void before_step(Trainer& trainer, int64_t step) override {
    if (step > 0) return;
    for (const RunEvaluation& one : *list_) run(trainer.session(), one);
  }
  bool pauses_after(int64_t steps) const override {
    return std::ranges::any_of(*list_, [steps](const RunEvaluation& one) { return is_due(one.interval, steps); });
  }
  void at_pause(Trainer& trainer) override {
    for (const RunEvaluation& one : *list_) {
      if (is_due(one.interval, trainer.session().next_step)) run(trainer.session(), one);
    }
  }
  void at_end(Trainer& trainer, Ending ending) override {
    if (ending != Ending::kDone) return;
    for (const RunEvaluation& one : *list_) run(trainer.session(), one);
  }

 private:
  void run(Session& session, const RunEvaluation& evaluation) try {
    const Range range(RangeKind::kPhase, "evaluate");
    const int64_t length = session.config.model.context, sequences = session.config.train.micro_batch;
    if (evaluation.task) {
      const TaskResult result = run_task(*evaluation.task, scorer_, sequences, length);
      return log_->evaluated(session, evaluation.name, result.describe(), result);
    }
    const TextScore score =
        score_text(scorer_, evaluation.text,
                   {.length = length, .stride = length, .sequences = sequences, .name = evaluation.name});
    log_->evaluated(session, evaluation.name, score.describe(), score);
  } catch (const FaultError& error) {  // on all ranks; the training has limits of its own for faults
    if (session.communicator.rank() == 0) log_warn("step {} | {}", session.next_step, error.what());
  }

  const RunEvaluationList list_;
  const std::shared_ptr<RunLog> log_;
  Scorer scorer_;
};

// Notes in the black box how steps end.
class StepRecorder final : public TrainObserver {
 public:
  explicit StepRecorder(BlackBox& box) : box_(box) {}

  void before_step(Trainer&, int64_t step) override { box_.set_step(step + 1); }
  void after_step(Trainer& trainer, const StepReport& step) override {
    const auto memory = static_cast<int64_t>(trainer.session().runtime.backend->memory_use().held_bytes);
    if (step.applied) {
      box_.note(BlackBoxEvent::Kind::kStep, "step", step.loss, memory);
    } else {
      box_.note(BlackBoxEvent::Kind::kSkipped, name(step.event), step.scale, memory);
    }
    if (step.verdict.stop_request != StopRequest::kNone) {
      box_.note(BlackBoxEvent::Kind::kStopAsked, "stop", static_cast<double>(step.verdict.stop_request));
    }
  }
  void after_validation(Trainer&, double loss) override {
    box_.note(BlackBoxEvent::Kind::kValidation, "validation", loss);
  }

 private:
  BlackBox& box_;
};

// Compares the ranks by the time that their work in a window of steps has taken, and nodes by their links.
class StragglerWatch final : public TrainObserver {
 public:
  // Collective.
  StragglerWatch(const StragglerConfig& options, Communicator& communicator, BlackBox& box, Heartbeat* heartbeat)
      : window_(options.window),
        box_(box),
        heartbeat_(heartbeat),
        hosts_(all_gather_texts(communicator, host_name())),
        detector_(options, communicator.size()),
        links_(communicator),
        counted_(box.work_seconds(kStepPhases)) {
    for (const int leader : links_.leaders()) node_hosts_.push_back(hosts_[static_cast<size_t>(leader)]);
    show_counts();
  }

  void after_step(Trainer& trainer, const StepReport& step) override {
    if (++steps_ < window_) return;
    const PhaseTimes all = box_.work_seconds(kStepPhases);
    trainer.session().sharded.optimizer.await_weights();  // their messages share the links
    Record mine{.link_seconds = links_.measure()};
    for (size_t i = 0; i < mine.phases.size(); ++i) mine.phases[i] = all[i] - counted_[i];
    const std::vector<Record> records = all_gather_records(trainer.session().communicator, mine);
    std::vector<PhaseTimes> by_rank;
    std::vector<double> by_node;
    for (const Record& record : records) by_rank.push_back(record.phases);
    for (const int leader : links_.leaders()) by_node.push_back(records[static_cast<size_t>(leader)].link_seconds);
    for (const StragglerChange& change : detector_.judge(by_rank, steps_)) {
      tell("slow rank", change, change.rank, step.step + 1,
           describe(change, hosts_[static_cast<size_t>(change.rank)], steps_));
    }
    for (const LinkChange& change : detector_.judge_links(by_node)) {
      tell("slow link", change, change.node, step.step + 1, describe(change, node_hosts_));
    }
    show_counts();
    counted_ = all;
    steps_ = 0;
  }

 private:
  struct Record {
    PhaseTimes phases{};
    double link_seconds = 0.0;
  };

  template <typename Change>
  void tell(const std::string& what, const Change& change, int which, int64_t step, const std::string& text) {
    box_.note(BlackBoxEvent::Kind::kNotice, change.is_slow ? what : "no longer " + what, static_cast<double>(which));
    if (heartbeat_ == nullptr) return;
    if (change.is_slow) {
      log_warn("step {}: {}", step, text);
    } else {
      log_info("step {}: {}", step, text);
    }
  }
  void show_counts() {
    if (heartbeat_ == nullptr) return;
    heartbeat_->figures().set("slow_ranks", detector_.slow_ranks());
    heartbeat_->figures().set("slow_links", detector_.slow_links());
  }

  const int64_t window_;
  BlackBox& box_;
  Heartbeat* const heartbeat_;  // rank 0
  const std::vector<std::string> hosts_;
  std::vector<std::string> node_hosts_;
  StragglerDetector detector_;
  NodeLinks links_;
  PhaseTimes counted_;
  int64_t steps_ = 0;  // of the window
};

}  // namespace mantissa
