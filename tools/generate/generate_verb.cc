#include "tools/generate/generate_verb.h"

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "core/base/log.h"
#include "tools/train/checkpoint.h"
#include "tools/train/checkpoint_files.h"

namespace mantissa {
namespace {

Checkpoint find_checkpoint(const std::string& run) {
  if (std::filesystem::exists(run + "/manifest.json")) return open_checkpoint(run);
  const CheckpointStore store(checkpoint_root(run),
                              {.warn = [](const std::string& text) { spdlog::warn("{}", text); }});
  if (const auto latest = store.latest_valid()) return *latest;
  throw CheckpointError(
      fmt::format("'{}' holds no valid checkpoint: expected a run folder with {} in it, or a checkpoint folder", run,
                  checkpoint_root("")));
}

std::vector<int32_t> prompt_tokens(const std::string& prompt, DataFormat format) {
  if (format == DataFormat::kBytes) return byte_tokens(prompt);
  std::vector<int32_t> tokens;
  std::istringstream words(prompt);
  for (int32_t token = 0; words >> token;) tokens.push_back(token);
  if (!words.eof()) {
    throw DataError(fmt::format(
        "this run was trained on token files: the prompt must be token numbers such as \"464 2159\", got '{}'",
        prompt));
  }
  return tokens;
}

void generate(const GenerateRequest& request) {
  const Checkpoint checkpoint = find_checkpoint(request.run);
  const Config config =
      parse_config(checkpoint.state.at("config").get<std::string>(), checkpoint.folder + "/manifest.json");
  ModelRuntime runtime(config);
  read_model_file(checkpoint.folder + "/" + kModelFile, runtime.parameters, *runtime.backend, *runtime.stream);
  const bool bytes = config.data.format == DataFormat::kBytes;
  const auto print = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  print(request.prompt);
  Generator(runtime, config.model)
      .run(prompt_tokens(request.prompt, config.data.format), request.sampling,
           [&](int32_t token) { print(bytes ? byte_text(token) : " " + std::to_string(token)); });
  print("\n");
}

}  // namespace

int generate_verb(const GenerateRequest& request) {
  try {
    generate(request);
    return static_cast<int>(ExitCode::kOk);
  } catch (const std::exception& exception) {
    spdlog::error("{}", exception.what());
    const auto* error = dynamic_cast<const Error*>(&exception);
    return static_cast<int>(error ? error->code() : ExitCode::kInternal);
  }
}

}  // namespace mantissa
