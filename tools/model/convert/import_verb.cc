#include "tools/model/convert/import_verb.h"

#include <filesystem>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/pending_output.h"
#include "tools/config/carried_files.h"
#include "tools/model/exchange/weights_file.h"
#include "tools/run/state/run_folder.h"
#include "tools/run/state/run_state.h"

namespace mantissa {
namespace {

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
                    "(config.json), or a model of llm.c (.bin)",
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

int import_verb(const ImportRequest& request) {
  return run_reported([&] { import_model(request); });
}

}  // namespace mantissa
