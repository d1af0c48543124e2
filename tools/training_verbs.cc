#include <cstdio>
#include <memory>

#include "core/base/log.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/generate/generate_verb.h"
#include "tools/guard/status_verb.h"
#include "tools/train/dry_run.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/launch.h"
#include "tools/train/precision_table.h"
#include "tools/train/training.h"
#include "tools/verbs.h"

namespace mantissa {
namespace {

struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;
};

std::shared_ptr<const ConfigArguments> add_config_arguments(CLI::App* verb) {
  const auto arguments = std::make_shared<ConfigArguments>();
  verb->add_option("config", arguments->path, "YAML file; configs/reference.yaml documents every key")->required();
  verb->add_option("overrides", arguments->overrides, "settings that replace the file's: optimizer.lr=3e-4");
  return arguments;
}

int config_verb(const std::string& path, const std::vector<std::string>& overrides) {
  return run_reported([&] {
    ConfigOrigins origins;
    const Config config = load_config(path, overrides, &origins);
    try {
      require_known_names(config);
      predict_memory_tables(config, 1);  // finds what only the model can refuse
    } catch (const ConfigError& error) {
      throw ConfigError(located(error.what(), origins));
    }
    for (const std::string& line : ineffective_settings(config, origins)) log_warn("{}", line);
    std::string text = to_yaml(config);
    for (int phase = 0; phase < phase_count(config); ++phase) {
      const Config own = in_phase(config, phase);
      text += fmt::format("\n# The short forms of precision as rules{}\n# rules:\n", phase_title(config, phase));
      for (const PrecisionRule& rule : own.precision_rules()) {
        text += fmt::format("#   - {}{}\n", describe(rule), rule.source.empty() ? "" : "  # " + rule.source);
      }
      text += fmt::format("\n# The precision of each op of this model{}\n", phase_title(config, phase));
      text += precision_table(own, "# ");
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

void add_status(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* status = app.add_subcommand("status", "Says whether a run is alive, how far it is and when it ends");
  const auto request = std::make_shared<StatusRequest>();
  status->add_option("run", request->run, "run folder")->required();
  status->add_flag("--json", request->json, "print an object for scripts");
  status->footer(
      "Exit code: 0 done, 10 running, 11 running without a heartbeat, 12 failed or dead before its end,\n"
      "75 stopped early (the same command continues), 2 not a run folder");
  verbs.push_back({status, [request] { return status_verb(*request); }});
}

void add_generate(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* generate = app.add_subcommand("generate", "Continues a prompt with a trained model");
  const auto request = std::make_shared<GenerateRequest>();
  generate->add_option("run", request->run, "run folder, or one checkpoint folder of it")->required();
  generate->add_option("--prompt", request->prompt, "what to continue")->required();
  generate->add_option("--tokens", request->sampling.tokens, "how many tokens to add")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate->add_option("--temperature", request->sampling.temperature, "0: always the likeliest token")
      ->capture_default_str();
  generate->add_option("--top-k", request->sampling.top_k, "draw from this many likeliest tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate->add_option("--seed", request->sampling.seed, "the same seed gives the same text")->capture_default_str();
  verbs.push_back({generate, [request] { return generate_verb(*request); }});
}

}  // namespace

void add_training_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* train = app.add_subcommand("train", "Trains a model; several ranks under mpirun or srun");
  const auto trained = add_config_arguments(train);
  verbs.push_back({train, [trained] { return train_verb(trained->path, trained->overrides); }});
  add_status(app, verbs);
  CLI::App* config = app.add_subcommand("config", "Prints the resolved configuration; validates, trains nothing");
  const auto printed = add_config_arguments(config);
  verbs.push_back({config, [printed] { return config_verb(printed->path, printed->overrides); }});
  add_generate(app, verbs);
}

}  // namespace mantissa
