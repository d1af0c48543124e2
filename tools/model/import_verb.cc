#include "tools/model/verbs.h"

#include <filesystem>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/pending_output.h"
#include "tools/config/carried_files.h"
#include "tools/model/exchange/model_source.h"
#include "tools/run/state/manifest.h"
#include "tools/run/state/next_commands.h"
#include "tools/run/state/run_state.h"

namespace mantissa {
namespace {

struct ImportRequest {
  std::string model;  // the folder of a Hugging Face model, or a GPT-2 of llm.c
  std::string out;    // run folder to make
};

// The settings of a run that begins with the weights in `run`.
Config config_for(const ModelConfig& model, const std::string& run) {
  Config config;
  config.model = model;
  config.data.format = DataFormat::kTokens;
  config.train.init_from = std::filesystem::absolute(run).lexically_normal().string();
  return config;
}

void import_model(const ImportRequest& request) {
  if (!is_foreign_model(request.model)) {
    throw ConfigError(
        fmt::format("'{}' is not a model of another program: expected the folder of a Hugging Face model "
                    "(config.json), or a GPT-2 of llm.c (.bin)",
                    request.model));
  }
  const std::unique_ptr<ModelSource> source = open_foreign_model(request.model);
  PendingOutput folder(PendingOutput::Kind::kFolder, request.out);
  const Config config = config_for(source->model(), request.out);
  CheckpointStore store(checkpoint_root(folder.partial()),
                        {.warn = [](const std::string& text) { log_warn("{}", text); }});
  store.begin(0);
  const CheckpointFile weights = write_weights_file(*source, store.partial_folder(0), kModelFile);
  store.commit(0, model_fingerprint(config), {weights},
               {{"format_version", kStateVersion},
                {"config", to_yaml(config)},
                {kWeightsOnly, true},
                {"run", to_json(RunState(config))}});
  write_file<CheckpointError>(folder.partial() + "/config.yaml", to_yaml(config));
  if (const std::string from = carried_folder(request.model); !from.empty()) {
    carry_files(from, folder.partial() + "/" + kCarriedFolder);
  }
  folder.finish();
  const ModelConfig& model = source->model();
  log_info("{}: {}, width {}, vocabulary {}, {:.2f}M parameters in {}", request.out, counted(model.layers, "layer"),
           model.width, model.vocab, static_cast<double>(source->parameters().numel()) * 1e-6,
           name(source->dtype(source->parameters()[0].name)));
  log_info("next: mantissa generate {0} --prompt TEXT | mantissa train {0} data.train=FILES train.run_dir=RUN",
           shell_word(request.out));
}

}  // namespace

void add_import(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* import = app.add_subcommand("import", "Make a run folder of a Hugging Face model, or a GPT-2 of llm.c");
  const auto request = std::make_shared<ImportRequest>();
  import->add_option("model", request->model, "folder with config.json and safetensors files, or llm.c's .bin file")
      ->required();
  import->add_option("--out", request->out, "run folder to make")->required();
  verbs.push_back({import, "import SmolLM2-135M --out runs/smollm2",
                   [request] { return run_reported([&] { import_model(*request); }); }});
}

}  // namespace mantissa
