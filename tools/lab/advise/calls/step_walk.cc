#include "tools/lab/advise/calls/step_walk.h"

#include <optional>

#include "comm/amax_exchange.h"
#include "comm/verdict_reduction.h"
#include "core/backend/recording_backend.h"
#include "tools/lab/advise/calls/absent_ranks.h"
#include "tools/train/gathered_codes.h"
#include "tools/train/session.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 46;  // address space that nobody touches

// A training on a device that does nothing.
class Walk {
 public:
  Walk(const Config& config, int ranks, Fp8GemmSupport support, Backend* packing)
      : config_(config),
        backend_([this](KernelCall call) { found_.calls.push_back(std::move(call)); }, packing, support),
        communicator_(ranks,
                      [this](const char*, double bytes) {
                        if (!phase_.empty()) found_.sent_bytes[phase_] += bytes;
                      }),
        policy_(config.autocast()),
        model_(make_model(config, policy_, parameters_)),
        buckets_(parameters_, lay_out(config, parameters_, ranks), backend_),
        reducer_(buckets_, communicator_, backend_, *stream_, resolve_reducer(config, ranks)),
        scales_(parameters_, policy_, config.precision.delayed, backend_, *stream_),
        amaxes_(scales_, communicator_, backend_, *stream_),
        optimizer_(buckets_, communicator_, backend_, *stream_, config.comm.reducer.sharding, config.optimizer.adamw,
                   {.weights = gathered_codes(config, parameters_, policy_), .scales = &scales_}),
        verdicts_(communicator_, backend_, *stream_) {
    const TrainConfig& train = config.train;
    micro_batches_ = train.global_batch / (train.micro_batch * ranks);
    packs_ = train.keeps_packed_weights(ranks);
    const int64_t count = train.micro_batch * config.model.context;
    tokens_ = backend_.make_tensor(DType::kI32, {micro_batches_, count}, "tokens");
    step_number_ = backend_.make_tensor(DType::kI32, {1}, "step number");
    loss_gradient_ = backend_.make_tensor(DType::kF32, {1}, "loss gradient");
    losses_ = backend_.make_tensor(DType::kF32, {micro_batches_}, "losses");
    decision_ = backend_.make_record<UpdateDecision>("update decision");
  }

  // As TrainStep::calibrate().
  void calibrate() {
    if (scales_.calibrated()) return;
    scales_.begin_calibration();
    passes();
    optimizer_.record_amaxes();
    amaxes_.run({});
    scales_.end_calibration();
  }

  // As TrainStep::start().
  void step() {
    enter("data");
    backend_.upload(nullptr, tokens_, *stream_);
    backend_.upload(nullptr, tokens_, *stream_);
    backend_.upload(nullptr, step_number_, *stream_);
    enter("step");
    verdicts_.plan({});
    backend_.upload(nullptr, loss_gradient_, *stream_);
    passes();
    enter("decide");
    verdicts_.decide(losses_, reducer_);
    optimizer_.record_amaxes();
    amaxes_.run(verdicts_.decision());
    enter("update");
    optimizer_.step(reducer_, verdicts_.control());
    enter("step");
    backend_.copy(verdicts_.decision(), decision_, *stream_);
    enter("");
  }

  // From here on calls are kept.
  void listen() { listens_ = true; }
  StepCalls take() { return std::move(found_); }

 private:
  void enter(std::string_view phase) {
    if (!listens_) return;
    phase_ = phase;
    backend_.phase(phase);
  }

  // As StepWork::run().
  void passes() {
    parameters_.forget_gradients();
    for (int64_t index = 0; index < micro_batches_; ++index) {
      TapeOptions options = tape_options();
      enter("step");
      if (index + 1 == micro_batches_) {
        reducer_.begin();
        options.gradient_ready = [this](Parameter& parameter) { reducer_.ready(parameter); };
        options.between_nodes = [this] { reducer_.progress(); };
      }
      enter("forward");
      Tape tape(backend_, *stream_, arena_, policy_, weights_, std::move(options));
      const Tensor tokens = tokens_.slice(index * tokens_.dim(1), tokens_.dim(1));
      const LossOutput output = model_->loss(tape, tokens, tokens, config_.model.context);
      enter("step");
      backend_.copy(output.sum.value, losses_.slice(index, 1), *stream_);
      enter("backward");
      tape.backward(output.sum);
    }
    enter("reduce");
    reducer_.finish();
    arena_.rewind();
  }

  TapeOptions tape_options() {
    return {.random = {.step = step_number_, .samples = config_.train.micro_batch},
            .loss_gradient = loss_gradient_,
            .recompute = config_.train.recompute,
            .keeps_packed = packs_,
            .keeps_rounded = true,
            .delayed_scales = &scales_};
  }

  const Config& config_;
  StepCalls found_;
  std::string_view phase_;
  bool listens_ = false;
  RecordingBackend backend_;
  const std::unique_ptr<Stream> stream_ = backend_.create_stream();
  AbsentRanks communicator_;
  const AutocastPolicy policy_;
  ParameterSet parameters_;
  const std::unique_ptr<Model> model_;
  FlatBuckets buckets_;
  GradientReducer reducer_;
  DelayedScales scales_;
  AmaxExchange amaxes_;
  ShardedOptimizer optimizer_;
  VerdictReduction verdicts_;
  DerivedWeights weights_{backend_};
  Arena arena_{backend_.reserve(kArenaBytes)};
  int64_t micro_batches_ = 0;
  bool packs_ = false;
  Tensor tokens_, step_number_, loss_gradient_, losses_, decision_;
};

}  // namespace

double StepCalls::flops() const {
  double sum = 0.0;
  for (const KernelCall& call : calls) sum += call.work.flops;
  return sum;
}

double StepCalls::bytes() const {
  double sum = 0.0;
  for (const KernelCall& call : calls) sum += call.work.bytes;
  return sum;
}

double StepCalls::sent() const {
  double sum = 0.0;
  for (const auto& [phase, bytes] : sent_bytes) sum += bytes;
  return sum;
}

StepCalls walk_calls(const Config& config, int ranks, Fp8GemmSupport support, Backend* packing) {
  Walk walk(config, ranks, support, packing);
  walk.calibrate();
  walk.step();  // makes what later steps find: copies of weights, packed operands
  walk.listen();
  walk.step();
  return walk.take();
}

}  // namespace mantissa
