// RunEvaluations: the scores of train.evaluations while a model trains.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/model/evaluate/scorer.h"
#include "tools/train/run_log.h"

namespace mantissa {

// One of them, read: a task or a text.
struct RunEvaluation {
  std::string name;  // of the task or file; the path where two have the same
  int64_t interval = 0;
  std::optional<Task> task{};
  ScoredText text{};
};
using RunEvaluationList = std::shared_ptr<const std::vector<RunEvaluation>>;

// Reads all files. `model`: the run or weights whose tokenizer counts, unless empty. DataError, alike on all ranks.
// Collective.
RunEvaluationList read_evaluations(const Config& run, const std::string& model, Communicator& communicator);

// Before the first step, at each interval, and at the end. Passes have the shape of a micro-batch; ranks share them.
class RunEvaluations final : public TrainObserver {
 public:
  // `session` must outlive the object.
  RunEvaluations(Session& session, RunEvaluationList list, std::shared_ptr<RunLog> log);

  void before_step(Trainer& trainer, int64_t step) override;
  bool pauses_after(int64_t steps) const override;
  void at_pause(Trainer& trainer) override;
  void at_end(Trainer& trainer, Ending ending) override;

 private:
  void run(Session& session, const RunEvaluation& evaluation);

  const RunEvaluationList list_;
  const std::shared_ptr<RunLog> log_;
  Scorer scorer_;
};

}  // namespace mantissa
