#include "tools/train/verbs.h"

#include <cstdio>
#include <memory>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/run/job/job.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/precision_table.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/training_job.h"

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

// Each line behind a "#".
std::string as_comment(std::string text) {
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', end + 3))
    text.insert(end + 1, "# ");
  return text;
}

struct MemoryRequest {
  bool table = false;
  int ranks = 1;
};

int config_verb(const std::string& path, const std::vector<std::string>& overrides, const MemoryRequest& memory) {
  return run_reported([&] {
    ConfigOrigins origins;
    const Config config = load_config(path, overrides, &origins);
    Config shared = config;
    shared.test = {};  // its faults may name ranks of the job that it is for
    validate_for_ranks(shared, memory.ranks, origins);
    std::vector<MemoryTable> tables;
    try {
      require_known_names(config);
      tables = predict_memory_tables(config, memory.ranks);  // finds what only the model can refuse
    } catch (const ConfigError& error) {
      throw ConfigError(located(error.what(), origins));
    }
    for (const std::string& line : ineffective_settings(config, origins)) {
      log_warn("{}", wrapped(line, std::string_view("warning: ").size(), Paths::kPassOver));
    }
    if (config.data.format == DataFormat::kBytes && config.model.vocab < 256) {
      log_warn("model.vocab = {}: data with other bytes than 0 to {} are refused; 256 has all bytes",
               config.model.vocab, config.model.vocab - 1);
    }
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
    for (int phase = 0; memory.table && phase < phase_count(config); ++phase) {
      text += fmt::format("\n# Memory of a rank of {}, predicted{}", memory.ranks, phase_title(config, phase));
      text += as_comment(to_text(tables[static_cast<size_t>(phase)])) + "\n";
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

int train_verb(const std::string& config_path, const std::vector<std::string>& overrides) {
  StopRequest stop;  // from the first moment to the last: MPI's start and end take seconds
  ConfigOrigins origins;
  Job job;
  try {
    const Config run = load_config(config_path, overrides, &origins);
    return static_cast<int>(run_training(run, origins, stop, job.start(run)));
  } catch (...) {
    return job.failed(origins);
  }
}

}  // namespace

void add_train_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* train = app.add_subcommand("train", "Train a model; several ranks under mpirun or srun");
  const auto trained = add_config_arguments(train);
  verbs.push_back({train, "train configs/quickstart.yaml \"data.train=my/text/*.txt\" optimizer.lr=3e-4",
                   [trained] { return train_verb(trained->path, trained->overrides); }});
  CLI::App* config = app.add_subcommand("config", "Print the resolved configuration; checks it, trains nothing");
  const auto printed = add_config_arguments(config);
  const auto memory = std::make_shared<MemoryRequest>();
  config->add_flag("--memory", memory->table, "also print the predicted memory of a rank by category");
  config->add_option("--ranks", memory->ranks, "of how many ranks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->needs("--memory");
  verbs.push_back({config, "config configs/gpt_small_bf16.yaml train.steps=2000 --memory",
                   [printed, memory] { return config_verb(printed->path, printed->overrides, *memory); }});
}

}  // namespace mantissa
