#include "tools/model/verbs.h"

#include "tools/model/convert/verbs.h"
#include "tools/model/evaluate/verbs.h"
#include "tools/model/generate/generate_verb.h"

namespace mantissa {

void add_model_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_generate(app, verbs);
  add_evaluate(app, verbs);
  add_score(app, verbs);
  add_import(app, verbs);
  add_export(app, verbs);
}

}  // namespace mantissa
