// `mantissa evaluate` and `mantissa score`: how well a model predicts text, and which choices it prefers. Both also run
// under mpirun, with the same results for every number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mantissa {

struct EvaluateRequest {
  std::string model;                   // as for train.init_from
  std::vector<std::string> overrides;  // settings such as precision.compute=fp32
  std::vector<std::string> texts;      // files, folders or patterns
  std::vector<std::string> tasks;      // see choice_tasks.h
  int64_t context = 0;                 // tokens in a window; 0: model.context, at most 2048
  int64_t stride = 0;                  // 0: windows do not overlap
  int64_t sequences = 4;               // in a pass
  std::string json;                    // file for the results
};
// Prints a line for each text and task. Returns the exit code.
int evaluate_verb(const EvaluateRequest& request);

struct ScoreRequest {
  std::string model;
  std::vector<std::string> overrides;
  std::string text;       // a file
  int64_t context = 0;    // as above; windows do not overlap
  int64_t sequences = 4;  // in a pass
};
// Prints a line for each token but the first: position, token, log-probability in nats, text. The numbers have the
// digits that give the same fp32 bits again. Returns the exit code.
int score_verb(const ScoreRequest& request);

}  // namespace mantissa
