// Log-probabilities of given tokens under a model; of a long text, scored in windows as long as a model sees; and
// multiple-choice tasks: the likeliest continuation of a context, with acc and acc_norm as EleutherAI's
// lm-evaluation-harness defines them for output_type multiple_choice.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "comm/communicator.h"
#include "tools/model/runtime/loaded_model.h"

namespace mantissa {

// Sequences of equal length, as one pass computes them. Ignored targets (kIgnoreIndex) have a loss of 0.
struct ScoredPass {
  std::vector<int32_t> tokens, targets;  // (sequences * length) each
  int64_t length = 0;
};

class Scorer {
 public:
  // At most `sequences` of `length` tokens at a time. `communicator`: of the ranks that share the work; null: there are
  // no others. References must outlive the object.
  Scorer(ModelRuntime& runtime, int64_t sequences, int64_t length, Communicator* communicator = nullptr);

  // The passes that the given sizes need, for load_model().
  static void run_dry(ModelRuntime& runtime, int64_t sequences, int64_t length);

  // -log p of each target, in nats, fp32: the losses of a training's forward pass on this batch, bit for bit. At most
  // as many sequences as were promised, of that length or shorter.
  std::vector<float> losses(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t length);

  // Computes `count` passes, each on a single rank, so that its bits do not depend on the number of ranks. `make` gives
  // this rank's passes. `take` receives the losses of all passes, in order, on every rank. Collective.
  void run(size_t count, const std::function<ScoredPass(size_t pass)>& make,
           const std::function<void(size_t pass, std::span<const float> losses)>& take);

 private:
  ModelRuntime& runtime_;
  Communicator* const communicator_;
  Tensor tokens_, targets_;  // (sequences * length) i32
};

struct WindowOptions {
  int64_t length = 0;     // tokens of a window that are read
  int64_t stride = 0;     // tokens from one window to the next; of later windows, the last `stride` predictions count
  int64_t sequences = 1;  // windows in a pass
  std::string name{};     // of the text in errors
};

// Calls `take(position, loss)` for every token but the first, in order: -log p of the token in nats, given those before
// it in its window. Ranks share the windows, and all of them learn all losses. FaultError naming the first position
// with a loss that is not finite. Collective.
void score_windows(Scorer& scorer, std::span<const int32_t> tokens, const WindowOptions& options,
                   const std::function<void(size_t position, float loss)>& take);

struct ScoredText {
  std::vector<int32_t> tokens;
  int64_t bytes = 0;  // 0: the file holds token ids
};
// Reads compressed files, too. Warns of files that seem to be no text. DataError naming the file if it cannot be read,
// or has fewer than 2 tokens or one outside of the vocabulary.
ScoredText read_scored_text(const std::string& path, const TextCodec& text, const ModelConfig& model,
                            EncodeOptions options = {.add_special_tokens = true});

struct TextScore {
  double nats = 0.0;
  int64_t tokens = 0;  // predicted ones
  int64_t bytes = 0;   // of the text; 0: not known

  double loss() const { return nats / static_cast<double>(tokens); }
  std::string describe() const;  // "perplexity 9.0250, 2.20000 nats per token"
};
void to_json(nlohmann::json& json, const TextScore& score);

TextScore score_text(Scorer& scorer, const ScoredText& text, const WindowOptions& options);

struct Choice {
  std::vector<int32_t> tokens;  // context and continuation
  size_t first = 0;             // of the continuation, > 0
  double length = 0.0;          // of the continuation, by which acc_norm divides
};

struct Question {
  std::vector<Choice> choices;
  size_t label = 0;  // the right one
};

struct Task {
  std::string name;
  std::vector<Question> questions;
  std::string length_unit;  // "characters"
};

// A file of JSON lines, each {"context": TEXT, "choices": [TEXT, ...], "label": INDEX}; "delimiter" stands between
// context and choice, one space by default. Or llm.c's hellaswag_val.bin, whose lengths are tokens: llm.c has no other.
// DataError naming file and line.
Task read_task(const std::string& path, const TextCodec& text, const ModelConfig& model);

// Warns of questions that run_task() cuts. DataError for a choice that does not fit into a window of `length` tokens
// even without its context: part of it would have no score.
void require_fitting(const Task& task, int64_t length);

struct TaskResult {
  std::string length_unit{};  // of the task
  int64_t questions = 0, right = 0, right_by_length = 0;

  double acc() const { return static_cast<double>(right) / static_cast<double>(questions); }
  double acc_norm() const { return static_cast<double>(right_by_length) / static_cast<double>(questions); }
  // Standard error of a share.
  static double error_of(double share, int64_t questions);
  std::string describe() const;  // "acc 0.2500 +- 0.0306, acc_norm 0.2600 +- 0.0310 (by characters; 200 questions)"
};
void to_json(nlohmann::json& json, const TaskResult& result);

// `sequences` choices at a time, cut at the front to `length` tokens. Ranks share the work, and all of them learn the
// result. FaultError naming a choice whose log-probability is not finite. Collective.
TaskResult run_task(const Task& task, Scorer& scorer, int64_t sequences, int64_t length);

}  // namespace mantissa
