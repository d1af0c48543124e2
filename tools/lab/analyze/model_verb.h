// `mantissa analyze model`: what precision does to a model, at the beginning of its training and later.
#pragma once

#include <string>

#include "tools/lab/analyze/model_analysis.h"

namespace mantissa {

struct ModelOutputs {
  std::string html, json;  // files; empty: none
};

// Several ranks under mpirun or srun. Rank 0 prints the report to standard output and writes the files. Returns the
// exit code.
int model_verb(const ModelRequest& request, const ModelOutputs& outputs);

}  // namespace mantissa
