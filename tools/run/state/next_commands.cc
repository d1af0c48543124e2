#include "tools/run/state/next_commands.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/base/process.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

std::string program() { return shell_word(program_invocation_name); }

std::string launcher(int ranks) {
  if (ranks == 1) return "";
  if (!slurm_job().empty()) return fmt::format("srun -n {} ", ranks);
  // OpenMPI's mpirun refuses root otherwise.
  return fmt::format("mpirun -np {} {}", ranks, geteuid() == 0 ? "--allow-run-as-root " : "");
}

bool stops_early(const Config& run) { return run.train.last_step() < run.train.steps; }

}  // namespace

std::string shell_word(const std::string& text) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-=:,@%";
  if (!text.empty() && text.find_first_not_of(kSafe) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string next_commands(const Config& run, int ranks) {
  const std::string folder = shell_word(run.train.run_dir), config = shell_word(run.train.run_dir + "/config.yaml");
  const bool is_text = run.data.format == DataFormat::kBytes ||
                       std::filesystem::exists(run.train.run_dir + "/huggingface/tokenizer.json");
  const char* const prompt = is_text ? "The " : "464 2159";
  std::string text;
  if (run.model.name != "encoder")
    text = fmt::format("to generate: {} generate {} --prompt \"{}\"\n", program(), folder, prompt);
  text += fmt::format("to analyze:  {} analyze model {}\n", program(), folder);
  const std::string longer =
      stops_early(run) ? "train.stop_at_step=0" : fmt::format("train.steps={}", 2 * run.train.steps);
  return text + fmt::format("to continue: {}{} train {} {}", launcher(ranks), program(), config, longer);
}

std::string finished_text(const Config& run, const ConfigOrigins& origins) {
  if (!stops_early(run)) {
    return fmt::format("already finished: {} of {} in {}; give a larger train.steps to go on", run.train.steps,
                       counted(run.train.steps, "step"), run.train.run_dir);
  }
  const auto origin = origins.find("train.stop_at_step");
  return fmt::format(
      "already finished: {0} of {1} in {2}, because train.stop_at_step = {0}{3}; give a larger one, or 0, to go "
      "on",
      run.train.last_step(), counted(run.train.steps, "step"), run.train.run_dir,
      origin == origins.end() ? "" : fmt::format(" ({})", origin->second));
}

}  // namespace mantissa
