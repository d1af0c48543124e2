// Multiple-choice tasks: the likeliest continuation of a context, with acc and acc_norm as EleutherAI's
// lm-evaluation-harness defines them for output_type multiple_choice.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/model/evaluate/scorer.h"

namespace mantissa {

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
// result. Collective.
TaskResult run_task(const Task& task, Scorer& scorer, int64_t sequences, int64_t length);

}  // namespace mantissa
