// `mantissa advise`: how fast a model would train in which precision, on a device that need not be there.
#pragma once

#include <string>
#include <vector>

namespace mantissa {

struct AdviseRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string hardware;  // of find_hardware(); empty: the present device
  int ranks = 1;
  std::vector<std::string> formats;  // see candidates_of()
  int rounds = 5;                    // of measurement, on the present device
  std::string json;                  // a file; empty: none

  // A plan of precision, where there is a budget.
  std::string budget;               // see parse_budget()
  std::string solver = "knapsack";  // of plan_solver_names()
  std::vector<std::string> recipes = {"current"};
  std::vector<std::string> state = {"moments", "masters", "wire"};  // see planned_shared(); {"none"}: none
  std::string plan = "precision_plan.yaml";                         // the file that it is written to
  int64_t warm_up = 50, batches = 4;                                // see PlanRunRequest
  int64_t seeds = 6, steps = 100;                                   // of its validation; no seeds: none
  int64_t time_pairs = 40;  // of step times beside those of uniform precisions, at most; 0: none
};

// Prints the advice to standard output and writes the file. Returns the exit code.
int advise_verb(const AdviseRequest& request);

}  // namespace mantissa
