#include "tools/lab/analyze/run_settings.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/log.h"
#include "core/base/meaningless_settings.h"
#include "tools/config/precision_phases.h"
#include "tools/train/launch.h"
#include "tools/train/precision_effects.h"

namespace mantissa {
namespace {

// Whether one of two paths is the other, or inside of it.
bool overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (b.size() == a.size() || b[a.size()] == '.' || b[a.size()] == '[');
}

bool is_given(const std::string& path, const std::vector<std::string>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [&path](const std::string& assignment) {
    return overlap(path, std::string_view(assignment).substr(0, assignment.find('=')));
  });
}

// With the number that an element of a list has in the run: those before it may have been left out since.
std::string path_in_run(const std::string& path, const std::vector<std::string>& left_out) {
  const size_t open = path.find('[');
  if (open == std::string::npos) return path;
  const std::string list = path.substr(0, open + 1);
  size_t index = std::stoul(path.substr(open + 1));
  for (auto gone = left_out.rbegin(); gone != left_out.rend(); ++gone) {
    const bool is_element = gone->starts_with(list) && gone->ends_with(']');
    if (is_element && std::stoul(gone->substr(open + 1)) <= index) ++index;
  }
  return fmt::format("{}{}{}", list, index, path.substr(path.find(']')));
}

}  // namespace

Config run_settings(const std::string& yaml, const std::string& source, const std::vector<std::string>& overrides) {
  std::vector<std::string> left_out, names;
  while (true) {
    try {
      Config config = parse_config(yaml, source, overrides, left_out);
      require_known_names(config);
      for (int phase = 0; phase < phase_count(config); ++phase) require_effects(in_phase(config, phase));
      if (!names.empty()) {
        log_info("of the run's settings these say nothing beside those given here, and are left out: {}",
                 fmt::join(names, ", "));
      }
      return config;
    } catch (const MeaninglessSettings& error) {
      const auto own = std::find_if(error.paths().begin(), error.paths().end(),
                                    [&](const std::string& path) { return !is_given(path, overrides); });
      if (overrides.empty() || own == error.paths().end()) throw;
      names.push_back(path_in_run(*own, left_out));
      left_out.push_back(*own);
    }
  }
}

}  // namespace mantissa
