#include "tools/train/run_evaluations.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/profile/range.h"

namespace mantissa {
namespace {

RunEvaluation read_evaluation(const EvaluationConfig& wanted, const Config& run, const TextCodec& codec) {
  const auto limit = static_cast<size_t>(wanted.limit);
  if (!wanted.tasks.empty()) {
    Task task = read_task(wanted.tasks, codec, run.model);
    if (limit > 0 && task.questions.size() > limit) task.questions.resize(limit);
    return {.name = task.name, .interval = wanted.interval, .task = std::move(task)};
  }
  ScoredText text = read_scored_text(wanted.text, codec, run.model);
  const size_t tokens = limit * static_cast<size_t>(run.model.context) + 1;
  if (limit > 0 && text.tokens.size() > tokens) text = {.tokens = {text.tokens.begin(), text.tokens.begin() + tokens}};
  return {
      .name = std::filesystem::path(wanted.text).stem().string(), .interval = wanted.interval, .text = std::move(text)};
}

}  // namespace

RunEvaluationList read_evaluations(const Config& run, const std::string& model, Communicator& communicator) {
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

RunEvaluations::RunEvaluations(Session& session, RunEvaluationList list, std::shared_ptr<RunLog> log)
    : list_(std::move(list)),
      log_(std::move(log)),
      scorer_(session.runtime, session.config.train.micro_batch, session.config.model.context, &session.communicator) {}

void RunEvaluations::before_step(Trainer& trainer, int64_t step) {
  if (step > 0) return;
  for (const RunEvaluation& one : *list_) run(trainer.session(), one);
}

bool RunEvaluations::pauses_after(int64_t steps) const {
  return std::ranges::any_of(*list_, [steps](const RunEvaluation& one) { return is_due(one.interval, steps); });
}

void RunEvaluations::at_pause(Trainer& trainer) {
  for (const RunEvaluation& one : *list_) {
    if (is_due(one.interval, trainer.session().next_step)) run(trainer.session(), one);
  }
}

void RunEvaluations::at_end(Trainer& trainer, Ending ending) {
  if (ending != Ending::kDone) return;
  for (const RunEvaluation& one : *list_) run(trainer.session(), one);
}

void RunEvaluations::run(Session& session, const RunEvaluation& evaluation) {
  const Range range(RangeKind::kPhase, "evaluate");
  const int64_t length = session.config.model.context, sequences = session.config.train.micro_batch;
  if (evaluation.task) {
    const TaskResult result = run_task(*evaluation.task, scorer_, sequences, length);
    return log_->evaluated(session, evaluation.name, result.describe(), result);
  }
  const TextScore score =
      score_text(scorer_, evaluation.text, {.length = length, .stride = length, .sequences = sequences});
  log_->evaluated(session, evaluation.name, score.describe(), score);
}

}  // namespace mantissa
