// `mantissa analyze probes`: prints a run's probe rows as comma-separated values, also during the run.
#pragma once

#include <cstdint>
#include <string>

namespace mantissa {

struct ProbesRequest {
  std::string run;           // a run folder, or a probe file
  std::string role, tensor;  // rows of this role, of tensors whose name contains this; empty: all
  int64_t step = 0;          // rows of this step; 0: all
  // Adds the losses of another format, at a scale of 2^exponent; empty: none.
  std::string format;
  int exponent = 0;
  std::string sql;  // a query to print instead of rows; empty: none
};

// Prints a line of names, then a line for each row, to standard output. Returns the exit code.
int probes_verb(const ProbesRequest& request);

}  // namespace mantissa
