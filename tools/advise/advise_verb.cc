#include "tools/advise/advise_verb.h"

#include <cstdio>

#include "core/base/run_reported.h"
#include "tools/advise/advice.h"
#include "tools/analyze/output_file.h"
#include "tools/config/validation.h"
#include "tools/train/launch.h"

namespace mantissa {
namespace {

void run(const AdviseRequest& request) {
  const Config config = load_config(request.config, request.overrides);
  require_known_names(config);
  validate_for_ranks(config, request.ranks);
  const Hardware& hardware = find_hardware(request.hardware);
  const std::vector<Candidate> candidates = candidates_of(config, request.formats);
  OutputFile json("--json", request.json);
  const Roofline roofline(hardware);
  const Advice advice = advise(request.config, config, candidates, request.ranks,
                               {.title = std::string(hardware.title),
                                .costs = &roofline,
                                .hardware = &hardware,
                                .narrow_units = hardware.narrow_units,
                                .memory_bytes = hardware.memory_bytes});
  const std::string text = to_text(advice);
  std::fwrite(text.data(), 1, text.size(), stdout);
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // paths need not be UTF-8
  if (json.is_wanted()) json.write(to_json(advice).dump(1, ' ', false, kReplace) + "\n");
}

}  // namespace

int advise_verb(const AdviseRequest& request) {
  return run_reported([&] { run(request); });
}

}  // namespace mantissa
