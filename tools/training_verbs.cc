#include <cstdio>
#include <memory>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/text/chat_template.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/convert/export_verb.h"
#include "tools/convert/import_verb.h"
#include "tools/evaluate/evaluate_verb.h"
#include "tools/generate/generate_verb.h"
#include "tools/guard/status_verb.h"
#include "tools/lab/runs/run_report.h"
#include "tools/lab/runs/watch_verb.h"
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

void add_status(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* status = app.add_subcommand("status", "Tell whether a run is alive, how far it is and when it ends");
  const auto request = std::make_shared<StatusRequest>();
  status->add_option("run", request->run, "run folder")->required();
  status->add_flag("--json", request->json, "print an object for scripts");
  status->footer(
      "Exit code: 0 done, 10 running, 11 running without a heartbeat, 12 failed or dead before its end,\n"
      "75 stopped early (the same command continues), 2 not a run folder");
  verbs.push_back({status, "status runs/quickstart", [request] { return status_verb(*request); }});
}

void add_watch(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* watch = app.add_subcommand("watch", "Show the curves of runs in the terminal, while they train or after");
  const auto request = std::make_shared<WatchRequest>();
  watch->add_option("runs", request->runs, "run folders; several are shown as a table")->required();
  watch->add_flag("--once", request->once, "print one frame and end, as without a terminal");
  watch->add_option("--interval", request->interval_s, "seconds between two frames")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  watch->footer("Ends when no run is under way any more, or by Ctrl-C, with exit code 0; 2 not a run folder");
  verbs.push_back({watch, "watch runs/quickstart", [request] { return watch_verb(*request); }});
}

void add_report(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* report = app.add_subcommand("report", "Report on runs beside each other, as a page with their curves");
  const auto request = std::make_shared<RunReportRequest>();
  report->add_option("runs", request->runs, "run folders")->required();
  report->add_option("--html", request->html, "also write the report as a page that needs no network");
  report->add_option("--json", request->json, "also write the figures to this file");
  verbs.push_back({report, "report runs/quickstart --html report.html", [request] { return report_verb(*request); }});
}

constexpr const char* kModelPath = "run folder, checkpoint folder, Hugging Face folder, or llm.c's .bin";

void add_generate(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* generate = app.add_subcommand("generate", "Continue prompts or answer messages with a trained model");
  const auto request = std::make_shared<GenerateRequest>();
  PromptChoice& prompts = request->prompts;
  SamplingFilters& filters = request->sampling.filters;
  generate->add_option("run", request->run, kModelPath)->required();
  generate->add_option("overrides", request->overrides, "settings that replace the run's: precision.compute=fp32");
  generate->add_option("--prompt", prompts.prompt, "text to continue");
  generate->add_option("--chat", prompts.chat, "message to answer, in the model's chat template");
  generate->add_option("--messages", prompts.messages, "conversation to answer: a JSON list of role and content");
  CLI::Option* const prompt_file =
      generate->add_option("--prompts", prompts.prompts, "prompt or conversation a line; prints lines of JSON");
  generate->add_option("--system", prompts.system, "system message of conversations without one");
  generate->add_option("--chat-template", prompts.chat_template, "name of a template, in place of the model's")
      ->check(CLI::IsMember(chat_template_names()));
  constexpr int64_t kMostTokens = int64_t{1} << 40, kMostAtATime = 1024;
  generate->add_option("--tokens", request->sampling.tokens, "how many tokens to add at most")
      ->check(CLI::Range(int64_t{0}, kMostTokens))
      ->capture_default_str();
  generate->add_option("--stop", request->stops, "end in front of this text; several times for several")
      ->allow_extra_args(false);
  generate->add_option("--temperature", filters.temperature, "0: always the likeliest token")->capture_default_str();
  generate->add_option("--top-k", filters.top_k, "draw from this many likeliest tokens; 0: from all")
      ->check(CLI::Range(int64_t{0}, kMostTokens))
      ->capture_default_str();
  generate->add_option("--top-p", filters.top_p, "draw from the likeliest tokens of this probability in all")
      ->capture_default_str();
  generate->add_option("--min-p", filters.min_p, "leave out tokens less likely than this times the likeliest")
      ->capture_default_str();
  generate->add_option("--repetition-penalty", filters.repetition_penalty, "above 1: tokens repeat less")
      ->capture_default_str();
  generate->add_option("--seed", request->sampling.seed, "the same seed gives the same text")->capture_default_str();
  generate->add_option("--batch", request->batch, "prompts of a file that are continued at a time")
      ->check(CLI::Range(int64_t{1}, kMostAtATime))
      ->capture_default_str()
      ->needs(prompt_file);
  verbs.push_back(
      {generate, "generate runs/quickstart --prompt \"The \"", [request] { return generate_verb(*request); }});
}

void add_import(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* import = app.add_subcommand("import", "Make a run folder of a Hugging Face model, or a model of llm.c");
  const auto request = std::make_shared<ImportRequest>();
  import->add_option("model", request->model, "folder with config.json and safetensors files, or llm.c's .bin file")
      ->required();
  import->add_option("--out", request->out, "run folder to make")->required();
  verbs.push_back({import, "import SmolLM2-135M --out runs/smollm2", [request] { return import_verb(*request); }});
}

void add_export(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* exports = app.add_subcommand("export", "Write the weights of a run as a Hugging Face folder, or for llm.c");
  const auto request = std::make_shared<ExportRequest>();
  exports->add_option("run", request->run, kModelPath)->required();
  exports->add_option("--out", request->out, "folder to make; a file for llm.c")->required();
  exports
      ->add_option("--format", request->format,
                   "huggingface, llmc (GPT-2 or Llama 3), llmc-cuda (a Llama 3 for train_llama3.cu), or peft: the "
                   "adapters alone (model.lora)")
      ->check(CLI::IsMember({"huggingface", "llmc", "llmc-cuda", "peft"}))
      ->capture_default_str();
  exports->add_option("--dtype", request->dtype, "fp32, bf16, fp16, or auto: that of most working weights")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  exports->add_option("--family", request->family,
                      "model_type to write, such as llama; else that of the imported model, or the first that fits");
  exports->add_option("--max-shard-gb", request->max_shard_gb, "most bytes of a file of weights, in 10^9")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  verbs.push_back({exports, "export runs/quickstart --out quickstart-hf", [request] { return export_verb(*request); }});
}

// `sequences`: of a pass.
void add_window_options(CLI::App* verb, int64_t& context, int64_t& sequences) {
  verb->add_option("--context", context, "tokens in a window; 0: model.context, at most 2048")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  verb->add_option("--batch", sequences, "windows in a pass")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
}

void add_evaluate(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* evaluate = app.add_subcommand("evaluate", "Tell how well a model predicts texts, or answers questions");
  const auto request = std::make_shared<EvaluateRequest>();
  evaluate->add_option("model", request->model, kModelPath)->required();
  evaluate->add_option("overrides", request->overrides, "settings that replace the run's: precision.compute=fp32");
  evaluate->add_option("--text", request->texts,
                       "files, folders or patterns: perplexity and bits per byte of each file");
  evaluate->add_option("--tasks", request->tasks, "multiple choice: JSON lines, or llm.c's hellaswag_val.bin");
  add_window_options(evaluate, request->context, request->sequences);
  evaluate->add_option("--stride", request->stride, "tokens from a window to the next; 0: windows do not overlap")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  evaluate->add_option("--json", request->json, "also write the results to this file");
  verbs.push_back({evaluate, "evaluate runs/quickstart --text my/text", [request] { return evaluate_verb(*request); }});
}

void add_score(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* score = app.add_subcommand("score", "Print the log-probability of each token of a text");
  const auto request = std::make_shared<ScoreRequest>();
  score->add_option("model", request->model, kModelPath)->required();
  score->add_option("text", request->text, "file")->required();
  score->add_option("overrides", request->overrides, "settings that replace the run's: precision.compute=fp32");
  add_window_options(score, request->context, request->sequences);
  verbs.push_back({score, "score runs/quickstart my/text/held-out.txt", [request] { return score_verb(*request); }});
}

}  // namespace

void add_training_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* train = app.add_subcommand("train", "Train a model; several ranks under mpirun or srun");
  const auto trained = add_config_arguments(train);
  verbs.push_back({train, "train configs/quickstart.yaml \"data.train=my/text/*.txt\" optimizer.lr=3e-4",
                   [trained] { return train_verb(trained->path, trained->overrides); }});
  add_status(app, verbs);
  add_watch(app, verbs);
  add_report(app, verbs);
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
  add_generate(app, verbs);
  add_evaluate(app, verbs);
  add_score(app, verbs);
  add_import(app, verbs);
  add_export(app, verbs);
}

}  // namespace mantissa
