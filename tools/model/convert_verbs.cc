#include "tools/model/verbs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "models/layers.h"
#include "models/model.h"
#include "tools/config/data_paths.h"
#include "tools/model/convert/adapters.h"
#include "tools/model/exchange/families.h"
#include "tools/model/exchange/llmc_file.h"
#include "tools/model/exchange/model_source.h"
#include "tools/model/runtime/open_model.h"
#include "tools/run/state/run_folder.h"
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
  require<ConfigError>(is_foreign_model(request.model),
                       "'{}' is not a model of another program: expected the folder of a Hugging Face model "
                       "(config.json), or a GPT-2 of llm.c (.bin)",
                       request.model);
  const std::unique_ptr<ModelSource> source = open_foreign_model(request.model);
  PendingOutput folder(PendingOutput::Kind::kFolder, request.out);
  const Config config = config_for(source->model(), request.out);
  CheckpointStore store(checkpoint_root(folder.partial()), {});
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

struct ExportRequest {
  std::string run;                     // run folder, checkpoint folder, or a model of another program
  std::string out;                     // folder to make; for llm.c a file
  std::string format = "huggingface";  // "llmc"; "peft": only the adapters
  std::string dtype = "auto";          // "fp32", "bf16", "fp16"; auto: that of most working weights
  std::string family{};                // model_type; empty: the imported model's, or the first that fits
  double max_shard_gb = 50.0;          // of a file of weights, in 10^9 bytes
  int64_t max_positions = 0;           // max_position_embeddings; 0: the model's own
};

std::string_view hf_dtype(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kBF16 ? "bfloat16" : "float16";
}

// The dtype of most working weights.
DType common_dtype(const ModelSource& source) {
  std::map<DType, int64_t> counts;
  for (int i = 0; i < source.parameters().size(); ++i) {
    const Parameter& parameter = source.parameters()[i];
    if (adapter_place(parameter)) continue;
    counts[source.dtype(parameter.name)] += parameter.numel();
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  return most->first == DType::kF64 ? DType::kF32 : most->first;
}

// Whether the model was imported, or belongs to another program, and was not trained since.
bool is_untrained(const std::string& run) {
  if (is_foreign_model(run)) return true;
  const std::string folder = find_checkpoint_folder(run);
  return read_state(folder, [&] { return read_manifest(folder).state.value(kWeightsOnly, false); });
}

void require_fp16_range(const Parameter& parameter, const std::vector<float>& values) {
  const auto outside = std::ranges::count_if(
      values, [](float value) { return std::isfinite(value) && std::isinf(to_float(from_float<Float16>(value))); });
  if (outside == 0) return;
  throw ConfigError("--dtype fp16: {} of '{}' would become infinite (fp16 ends at 65504); expected bf16 or fp32",
                    counted(outside, "value"), parameter.name);
}

struct Weights {
  std::unique_ptr<ModelSource> source;
  DType dtype;                // of most tensors
  bool keeps_dtypes = false;  // each tensor in its stored dtype

  DType dtype_of(const Parameter& parameter) const { return keeps_dtypes ? source->dtype(parameter.name) : dtype; }
  // Adapters are merged in fp32, and the sum is rounded once.
  std::vector<std::byte> bytes(const Parameter& parameter) const {
    const DType dtype = dtype_of(parameter);
    if (!has_adapters(*source, parameter)) {
      if (dtype == DType::kF16 && source->dtype(parameter.name) != DType::kF16) {
        require_fp16_range(parameter, source->values(parameter.name));
      }
      std::vector<std::byte> values(static_cast<size_t>(parameter.numel() * size_bytes(dtype)));
      source->read(parameter.name, dtype, values);
      return values;
    }
    const std::vector<float> merged = merged_values(*source, parameter);
    if (dtype == DType::kF16) require_fp16_range(parameter, merged);
    return converted(
        {std::string(safetensors_name(DType::kF32)), {parameter.numel()}, std::as_bytes(std::span(merged))}, dtype);
  }
  // Without that of adapters.
  ModelConfig model() const {
    ModelConfig plain = source->model();
    plain.lora = {};
    return plain;
  }
  double millions() const {
    ParameterSet parameters;
    create_model(model(), parameters);
    return static_cast<double>(parameters.numel()) * 1e-6;
  }
};

Weights open_weights(const ExportRequest& request) {
  Weights weights{.source = open_model(request.run, RunWeights::kWorking), .dtype = DType::kF32};
  weights.dtype = request.dtype == "auto" ? common_dtype(*weights.source) : *parse_float_dtype(request.dtype);
  // Masters hold more than working weights of 16 bits.
  const bool has_adapters = weights.source->model().lora.rank > 0;
  if (request.format == "peft" && request.dtype == "auto") weights.dtype = DType::kF32;
  if (weights.dtype == DType::kF32 || has_adapters) weights.source = open_model(request.run, RunWeights::kMaster);
  weights.keeps_dtypes = request.dtype == "auto" && request.format != "llmc" && is_untrained(request.run);
  return weights;
}

// A tensor of a Hugging Face file: rows of a parameter, perhaps transposed.
struct HfTensor {
  const Parameter* parameter;
  ParameterParts::Part part;
  bool is_transposed;
  int64_t first_row;

  int64_t numel() const { return numel_of(part.shape); }
};

std::vector<HfTensor> tensors_of(const ModelSource& source, const ModelFamily& family) {
  std::vector<HfTensor> tensors;
  for (int i = 0; i < source.parameters().size(); ++i) {
    const Parameter& parameter = source.parameters()[i];
    if (adapter_place(parameter)) continue;
    const ParameterParts parts = hf_parts(family, source.model(), parameter);
    int64_t row = 0;
    for (const ParameterParts::Part& part : parts.parts) {
      tensors.push_back({&parameter, part, parts.is_transposed, row});
      row += part.shape[0];
    }
  }
  return tensors;
}

// Writes files of at most `most_bytes`, or of one tensor.
class HfWriter {
 public:
  HfWriter(const Weights& weights, const ModelFamily& family, std::string folder)
      : weights_(weights), tensors_(tensors_of(*weights.source, family)), folder_(std::move(folder)) {}

  void write(uint64_t most_bytes) {
    std::vector<std::vector<const HfTensor*>> files(1);
    uint64_t total = 0, in_file = 0;
    for (const HfTensor& tensor : tensors_) {
      const auto bytes = static_cast<uint64_t>(tensor.numel() * size_bytes(weights_.dtype_of(*tensor.parameter)));
      if (in_file > 0 && in_file + bytes > most_bytes) {
        files.emplace_back();
        in_file = 0;
      }
      files.back().push_back(&tensor);
      in_file += bytes;
      total += bytes;
    }
    progress_.emplace("export: MB", static_cast<int64_t>(total / kMegabyte));
    nlohmann::json placed = nlohmann::json::object();
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string name = files.size() == 1 ? "model.safetensors"
                                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
      write_file(name, files[i]);
      for (const HfTensor* const tensor : files[i]) placed[tensor->part.name] = name;
    }
    progress_.reset();
    if (files.size() == 1) return;
    const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", placed}};
    mantissa::write_file<CheckpointError>(folder_ + "/model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  static constexpr uint64_t kMegabyte = 1'000'000;

  void write_file(const std::string& name, std::vector<const HfTensor*> tensors) {
    const auto width = [this](const HfTensor* tensor) { return size_bytes(weights_.dtype_of(*tensor->parameter)); };
    std::ranges::stable_sort(tensors, std::greater(), width);  // SafetensorsWriter::order()
    std::vector<SafetensorsEntry> entries;
    for (const HfTensor* const tensor : tensors) {
      entries.push_back({.name = tensor->part.name,
                         .dtype = std::string(safetensors_name(weights_.dtype_of(*tensor->parameter))),
                         .shape = tensor->part.shape});
    }
    CheckpointFileWriter file(folder_, name);
    SafetensorsWriter writer(file, std::move(entries));
    for (const HfTensor* const tensor : tensors) {
      progress_->reach(static_cast<int64_t>(done_ / kMegabyte));
      done_ += static_cast<uint64_t>(tensor->numel() * width(tensor));
      if (held_ != tensor->parameter) {
        held_bytes_ = weights_.bytes(*tensor->parameter);
        held_ = tensor->parameter;
      }
      const Shape& shape = held_->shape;
      const DType dtype = weights_.dtype_of(*held_);
      if (tensor->is_transposed) {
        writer.append(
            tensor->part.name,
            converted({std::string(safetensors_name(dtype)), {shape[0], shape[1]}, held_bytes_}, dtype, true));
        continue;
      }
      const size_t row_bytes = held_bytes_.size() / static_cast<size_t>(shape[0]);
      writer.append(tensor->part.name, std::span(held_bytes_)
                                           .subspan(static_cast<size_t>(tensor->first_row) * row_bytes,
                                                    static_cast<size_t>(tensor->numel() * size_bytes(dtype))));
    }
    writer.finish();
    file.close();
  }

  const Weights& weights_;
  const std::vector<HfTensor> tensors_;
  const std::string folder_;
  const Parameter* held_ = nullptr;  // read last: several tensors come from one parameter
  std::vector<std::byte> held_bytes_;
  std::optional<ProgressBar> progress_;
  uint64_t done_ = 0;
};

// The model that the run began with.
std::string base_of(const std::string& run) {
  const std::string folder = find_checkpoint_folder(run);
  return read_state(folder, [&] {
    return parse_config(read_manifest(folder).state.at("config").get<std::string>(), folder).train.init_from;
  });
}

void export_hf(const ExportRequest& request, const Weights& weights) {
  const std::string carried = carried_folder(request.run);
  const nlohmann::json config = carried_config(request.run);
  std::optional<std::string> wanted;
  if (const auto type = config.find("model_type"); type != config.end() && type->is_string())
    wanted = type->get<std::string>();
  if (!request.family.empty()) {
    const std::vector<std::string> lacks =
        obstacles(family_of({{"model_type", request.family}}, "--family"), weights.model());
    require<ConfigError>(lacks.empty(), "--family {}: the model does not fit: {}", request.family,
                         fmt::join(lacks, ", "));
    wanted = request.family;
  }
  const ModelFamily& family = family_for(weights.model(), wanted);
  PendingOutput folder(PendingOutput::Kind::kFolder, request.out);
  if (!carried.empty()) carry_files(carried, folder.partial());
  std::filesystem::remove(folder.partial() + "/config.json");  // adapters have none, and the model's is written anew
  if (request.format == "peft") {
    write_peft_adapters(*weights.source, family,
                        {.folder = folder.partial(),
                         .dtype = weights.dtype,
                         .base = is_foreign_model(request.run) ? "" : base_of(request.run)});
    folder.finish();
    return log_info("{}: the adapters of {}, for PEFT, in {}", request.out, request.run, name(weights.dtype));
  }
  HfWriter(weights, family, folder.partial()).write(static_cast<uint64_t>(request.max_shard_gb * 1e9));
  ModelConfig model = weights.model();
  model.context = request.max_positions > 0 ? request.max_positions : positions_of(request.run, model);
  const nlohmann::json written = write_hf_config(model, family, hf_dtype(weights.dtype), config);
  write_file<CheckpointError>(folder.partial() + "/config.json", written.dump(2) + "\n");
  folder.finish();
  log_info("{}: {}, {:.2f}M parameters in {}", request.out, family.architecture, weights.millions(),
           name(weights.dtype));
}

void export_llmc(const ExportRequest& request, const Weights& weights) {
  if (weights.dtype == DType::kF16) throw ConfigError("--dtype fp16: models of llm.c are in fp32 or bf16");
  PendingOutput output(PendingOutput::Kind::kFile, request.out);
  const std::filesystem::path partial = output.partial();
  CheckpointFileWriter file(partial.has_parent_path() ? partial.parent_path().string() : ".", partial.filename());
  write_llmc_model(
      weights.model(), weights.dtype, [&weights](const Parameter& parameter) { return weights.bytes(parameter); },
      file);
  file.close();
  output.finish();
  log_info("{}: a GPT-2 of llm.c, {:.2f}M parameters in {}", request.out, weights.millions(), name(weights.dtype));
}

void export_weights(const ExportRequest& request) {
  const Weights weights = open_weights(request);
  require<ConfigError>(request.max_positions <= 0 ||
                           (weights.source->model().position == Position::kRope && request.format == "huggingface"),
                       "--max-positions: expected a model with RoPE and --format huggingface; leave the option out");
  request.format == "llmc" ? export_llmc(request, weights) : export_hf(request, weights);
}

}  // namespace

void add_import(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* import = app.add_subcommand("import", "Make a run folder of a Hugging Face model, or a GPT-2 of llm.c");
  const auto request = std::make_shared<ImportRequest>();
  import
      ->add_option("model", request->model, "folder with config.json and safetensors files, or a GPT-2 of llm.c (.bin)")
      ->required();
  import->add_option("--out", request->out, "run folder to make")->required();
  verbs.push_back({import, "import SmolLM2-135M --out runs/smollm2",
                   [request] { return run_reported([&] { import_model(*request); }); }});
}

void add_export(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* exports = app.add_subcommand("export", "Write the weights of a run as a Hugging Face folder, or for llm.c");
  const auto request = std::make_shared<ExportRequest>();
  exports->add_option("run", request->run, kModelHelp)->required();
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
  VerbOptions(*exports).count("--max-positions", request->max_positions, 0, int64_t{1} << 24,
                              "longest text that config.json promises, with RoPE; 0: that of the model");
  verbs.push_back({exports, "export runs/quickstart --out quickstart-hf",
                   [request] { return run_reported([&] { export_weights(*request); }); }});
}

}  // namespace mantissa
