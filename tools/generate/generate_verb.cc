#include "tools/generate/generate_verb.h"

#include <charconv>
#include <cstdio>
#include <sstream>

#include "core/base/log.h"
#include "tools/guard/resume_choice.h"
#include "tools/train/checkpoint.h"
#include "tools/train/checkpoint_files.h"
#include "tools/train/dry_run.h"
#include "tools/train/run_state.h"

namespace mantissa {
namespace {

std::vector<int32_t> prompt_tokens(const std::string& prompt, DataFormat format) {
  if (format == DataFormat::kBytes) return byte_tokens(prompt);
  std::vector<int32_t> tokens;
  std::istringstream words(prompt);
  for (std::string word; words >> word;) {
    int32_t token = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size()) {
      throw DataError(fmt::format(
          "this run was trained on token files: the prompt must be token numbers such as \"464 2159\", got '{}'",
          word));
    }
    tokens.push_back(token);
  }
  return tokens;
}

void generate(const GenerateRequest& request) {
  const Checkpoint checkpoint = open_checkpoint(find_checkpoint_folder(request.run));
  const Config config = read_state(checkpoint.folder, [&checkpoint] {
    const Config run =
        parse_config(checkpoint.state.at("config").get<std::string>(), checkpoint.folder + "/manifest.json");
    return config_of(run, checkpoint.step, checkpoint.state.at("run"));
  });
  ModelRuntime runtime(config, open_device(config, choose_device(config.device, 0)),
                       [&](Fp8GemmSupport support) { return generation_arena_bytes(config, support); });
  read_model_file(checkpoint.folder + "/" + kModelFile, runtime.parameters, *runtime.backend, *runtime.stream);
  const bool bytes = config.data.format == DataFormat::kBytes;
  const auto print = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const std::vector<int32_t> prompt = prompt_tokens(request.prompt, config.data.format);
  Generator generator(runtime, config.model);
  generator.require_valid(prompt, request.sampling);
  print(request.prompt);
  generator.run(prompt, request.sampling,
                [&](int32_t token) { print(bytes ? byte_text(token) : " " + std::to_string(token)); });
  print("\n");
}

}  // namespace

int generate_verb(const GenerateRequest& request) {
  return run_reported([&] { generate(request); });
}

}  // namespace mantissa
