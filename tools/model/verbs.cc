#include "tools/model/verbs.h"

#include <memory>

#include "tools/model/convert/export_verb.h"
#include "tools/model/convert/import_verb.h"
#include "tools/model/evaluate/evaluate_verb.h"
#include "tools/model/generate/generate_verb.h"
#include "tools/text/chat/chat_template.h"

namespace mantissa {
namespace {

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
  CLI::App* import = app.add_subcommand("import", "Make a run folder of a Hugging Face model, or a GPT-2 of llm.c");
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
      ->add_option("--format", request->format, "huggingface, llmc (a GPT-2), or peft: the adapters alone (model.lora)")
      ->check(CLI::IsMember({"huggingface", "llmc", "peft"}))
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

void add_model_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_generate(app, verbs);
  add_evaluate(app, verbs);
  add_score(app, verbs);
  add_import(app, verbs);
  add_export(app, verbs);
}

}  // namespace mantissa
