// Evidence on the precisions of a training, found by several verbs and weighed. Three kinds, the strongest first:
//
//   training  `compare`: pairs of trainings over seeds, with a test of equivalence. All products are lowered together,
//             and errors act on through all steps.
//   one step  `analyze sensitivity`: the loss of a few batches with a single product lowered, at a point of the
//             training, in the pass or after an update. Measures a loss, but not how errors add up.
//   counts    `analyze model`, and sensitivity's bands: how many values a format loses. They measure no loss.
//
// The strongest kind with an answer decides. A weaker kind that disagrees is named, and does not count.
#pragma once

#include <string>
#include <vector>

#include "tools/run/report/report.h"

namespace mantissa {

// A rise of the loss that matters, nats per token: a tenth of a per cent of perplexity, and less than another seed
// makes. Unless its budget is one of loss, `advise` takes the fastest of the plans within it of the best.
inline constexpr double kHarmNats = 1e-3;

struct EvidenceFile {
  std::string name;  // in errors
  Json figures;      // that a verb wrote with --json
};

// ConfigError for a file of another verb, for files of different models, trainings or baselines, and if two files of
// one verb have the same precision. Several files of `compare` share their baseline.
Json weigh_evidence(const std::vector<EvidenceFile>& files);
std::string evidence_text(const Json& figures);

// Reads the files, prints the report to standard output, and writes its figures unless `json` is empty. Returns the
// exit code.
int evidence_verb(const std::vector<std::string>& files, const std::string& json);

}  // namespace mantissa
