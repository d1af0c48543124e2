#include "tools/generate/generate_verb.h"

#include <cstdio>

#include "core/base/log.h"
#include "tools/train/dry_run.h"
#include "tools/train/loaded_model.h"

namespace mantissa {
namespace {

constexpr GeneratorOptions kOptions{.keeps_packed = true};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void generate(const GenerateRequest& request) {
  const LoadedModel model = load_model(request.run, request.overrides, [](ModelRuntime& runtime, const Config& config) {
    generate_dry(runtime, config.model, kOptions);
  });
  const std::vector<int32_t> prompt = model.text->encode(request.prompt);
  Generator generator(*model.runtime, model.config.model, kOptions);
  generator.require_valid(prompt, request.sampling);
  print(request.prompt);
  const auto text_of = model.text->decoder();
  if (model.text->tokenizer() != nullptr) {  // the prompt may end within a character, and decides on spaces
    for (const int32_t token : prompt) text_of(token);
  }
  const std::optional<int32_t> end = model.text->tokenizer() != nullptr ? model.text->tokenizer()->eos() : std::nullopt;
  generator.run(prompt, request.sampling, [&](int32_t token) {
    if (token == end) return Continue::kNo;
    print(text_of(token));
    return Continue::kYes;
  });
  print(text_of(-1) + "\n");
}

}  // namespace

int generate_verb(const GenerateRequest& request) {
  return run_reported([&] { generate(request); });
}

}  // namespace mantissa
