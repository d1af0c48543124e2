// A training loop of one's own: mixed precision in fp16 with a loss scale, as in Micikevicius et al. 2018,
// data-parallel.
//
//   own_loop TEXT [STEPS]                 one process
//   mpirun -np 2 own_loop TEXT [STEPS]    two; each computes its part of the same batches
//
// The model predicts a byte from the one before it. Two optimizers, for its body and its head, share a loss scaler.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "amp/autocast_policy.h"
#include "amp/grad_scaler.h"
#include "comm/data_parallel.h"
#include "core/backend/registry.h"
#include "core/ops/activation.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/embedding.h"
#include "core/ops/linear.h"

using namespace mantissa;

constexpr int64_t kVocab = 256, kWidth = 64, kContext = 32, kBatch = 32;  // sequences in a step, over all ranks

// The sequences of this rank in a step, a function of the step and their number in the batch alone.
std::vector<int32_t> sequences(const std::string& text, int64_t step, int64_t shift, const Communicator& ranks) {
  std::vector<int32_t> tokens;
  const int64_t mine = kBatch / ranks.size(), places = static_cast<int64_t>(text.size()) - kContext;
  for (int64_t sample = step * kBatch + ranks.rank() * mine, i = 0; i < mine; ++i, ++sample) {
    const auto begin = static_cast<size_t>(sample * 7919 % places + shift);
    for (size_t t = begin; t < begin + kContext; ++t) tokens.push_back(static_cast<unsigned char>(text[t]));
  }
  return tokens;
}

// Parameters in two sets, each with its own optimizer. They stay in fp32; ops cast them.
struct Model {
  ParameterSet body{}, head{};
  const Init normal{.kind = Init::Kind::kNormal, .stddev = 0.05f};
  Parameter& table = body.add("embedding.weight", {kVocab, kWidth}, normal);
  Parameter& up = body.add("up.weight", {4 * kWidth, kWidth}, normal);
  Parameter& up_bias = body.add("up.bias", {4 * kWidth}, {});
  Parameter& down = body.add("down.weight", {kWidth, 4 * kWidth}, normal);
  Parameter& out = head.add("head.weight", {kVocab, kWidth}, normal);

  // Summed over tokens.
  Var loss(Tape& tape, const Tensor& tokens, const Tensor& targets) const {
    const AutocastScope fp16({.enabled = true, .dtype = DType::kF16});
    Var x = embedding(tape, tokens, kContext, table, nullptr);
    x = gelu(tape, linear(tape, x, up, &up_bias), GeluForm::kTanh);
    x = linear(tape, x, down, nullptr);
    const AutocastScope off({.enabled = false});  // the head in fp32, the widest of its inputs
    return cross_entropy(tape, linear(tape, x, out, nullptr), targets).sum;
  }
};

int main(int argc, char** argv) try {
  std::ifstream file(argc > 1 ? argv[1] : "");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() <= kContext) throw ConfigError("usage: own_loop TEXT [STEPS], where TEXT is a file of some length");
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 100;
  const auto ranks = create_communicator(std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ? "mpi" : "local");
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();

  Model model;
  DataParallel body(model.body, *ranks, *backend, *stream, {.adamw = {.weight_decay = 0.1f, .seed = 1}});
  DataParallel head(model.head, *ranks, *backend, *stream, {.adamw = {.weight_decay = 0.0f, .seed = 1}});
  GradScaler scaler(scaler_preset("pytorch"));
  const UniformPrecision defaults(unruled_precision());  // for each op the rule of PyTorch's autocast
  DerivedWeights casts(*backend);
  Arena arena(backend->reserve(size_t{256} << 20));
  const int64_t rows = kBatch / ranks->size() * kContext;
  const Tensor tokens = backend->make_tensor(DType::kI32, {rows}, "tokens");
  const Tensor targets = backend->make_tensor(DType::kI32, {rows}, "targets");
  const Tensor loss_gradient = backend->make_tensor(DType::kF32, {1}, "loss gradient");

  for (int64_t step = 0; step < steps; ++step) {
    arena.rewind();
    backend->upload(sequences(text, step, 0, *ranks).data(), tokens, *stream);
    backend->upload(sequences(text, step, 1, *ranks).data(), targets, *stream);
    const float start = scaler.scale() / static_cast<float>(kBatch * kContext);  // scaled, of the mean loss
    backend->upload(&start, loss_gradient, *stream);

    body.begin();
    head.begin();
    Tape tape(*backend, *stream, arena, defaults, casts,
              {.loss_gradient = loss_gradient, .gradient_ready = [&](Parameter& parameter) {
                 body.ready(parameter);
                 head.ready(parameter);
               }});
    const Var loss = model.loss(tape, tokens, targets);
    tape.backward(loss);

    const float unscale = scaler.unscale();
    const Gradients found = join(body.unscale(unscale, loss.value), head.unscale(unscale, loss.value));
    if (scaler.step(found.outcome)) {
      const double clip = clip_factor(found.norm, 1.0);
      body.step(3e-3, clip);
      head.step(1e-3, clip);
    }
    scaler.update();
    if (ranks->rank() == 0 && (step % 10 == 0 || step + 1 == steps)) {
      std::printf("step %3lld  loss %.6f  norm %.4f  scale %g\n", static_cast<long long>(step),
                  found.loss_sum / (kBatch * kContext), found.norm, static_cast<double>(scaler.current_scale()));
    }
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "own_loop: %s\n", error.what());
  return static_cast<int>(error.code());
}
