#include "tools/train/step/step_work.h"

#include <algorithm>
#include <span>

#include "core/kernels/reduction/args.h"
#include "core/profile/range.h"

namespace mantissa {

namespace {

std::string describe(const NonFiniteOp& bad, size_t micro_batch) {
  const bool is_backward = bad.pass == Pass::kBackward;
  std::string text =
      fmt::format("{}op {} of {} made {} NaN and {} Inf in {} {}, first at element {} (micro-batch {})",
                  is_backward ? "the backward pass of " : "", bad.op,
                  bad.layer.empty() ? std::string("the model") : fmt::format("layer '{}'", bad.layer),
                  bad.stats.nan_count, bad.stats.inf_count, bad.made, bad.shape, bad.stats.first_bad, micro_batch);
  if (bad.incoming) text += "; made of the " + to_text(*bad.incoming);
  for (size_t i = 0; i < bad.inputs.size(); ++i) {
    text += (i > 0 ? ", " : is_backward ? "; the op's inputs: " : "; made of ") + to_text(bad.inputs[i]);
  }
  return text;
}

FoundOp found_op(const NonFiniteOp& bad, size_t micro_batch) { return {describe(bad, micro_batch), bad.stored_by}; }

}  // namespace

StepWork::StepWork(Session& session)
    : config_(session.config),
      runtime_(session.runtime),
      communicator_(session.communicator),
      batches_(*session.batches),
      skipped_batches_(session.skipped_batches),
      optimizer_(session.sharded.optimizer),
      reducer_(session.sharded.reducer),
      faults_(session.faults),
      micro_batches_(session.micro_batches()) {
  const int64_t count = config_.train.micro_batch * config_.model.context;
  const OwnLanes lanes = reducer_.lanes();
  for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) {
    for (int64_t index = 0; index < micro_batches_; ++index) {
      const int64_t batch = index * session.lanes() + lane;
      first_samples_.push_back(static_cast<uint32_t>(batch * config_.train.micro_batch));
    }
  }
  const auto micro_batches = std::ssize(first_samples_);
  Backend& backend = *runtime_.backend;
  tokens_ = backend.make_tensor(DType::kI32, {micro_batches, count}, "input tokens");
  targets_ = backend.make_tensor(DType::kI32, {micro_batches, count}, "target tokens");
  if (config_.data.packs_documents()) {
    starts_ = backend.make_tensor(DType::kI32, {micro_batches, count}, "starts of documents");
  }
  step_number_ = backend.make_tensor(DType::kI32, {1}, "step number");
  const DType dtype = wide_of(config_.precision.compute);
  loss_gradient_ = backend.make_tensor(dtype, {1}, "loss gradient");
  factor_ = backend.make_tensor(DType::kF32, {1}, "factor of the gradients");
  losses_ = backend.make_tensor(dtype, {micro_batches}, "losses");
}

void StepWork::load(int64_t step) {
  const Range range(RangeKind::kPhase, "data");
  step_ = step;
  const Samples& samples = read(step);
  const int32_t number = static_cast<int32_t>(static_cast<uint32_t>(step));
  runtime_.backend->upload(samples.tokens.data(), tokens_, *runtime_.stream);
  runtime_.backend->upload(samples.targets.data(), targets_, *runtime_.stream);
  if (starts_.defined()) runtime_.backend->upload(samples.starts.data(), starts_, *runtime_.stream);
  runtime_.backend->upload(&number, step_number_, *runtime_.stream);
}

std::string StepWork::read_ahead(int64_t step) {
  const Range range(RangeKind::kPhase, "data");
  const int64_t end = std::min(step + 1 + kAhead, config_.train.last_step());
  try {
    for (int64_t next = step + 1; next < end; ++next) read(next);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

const StepWork::Samples& StepWork::read(int64_t step) {
  Samples& samples = samples_[static_cast<size_t>(step) % samples_.size()];
  if (samples.step == step) return samples;
  samples.step = -1;  // until they are whole
  samples.tokens.resize(static_cast<size_t>(tokens_.numel()));
  samples.targets.resize(samples.tokens.size());
  samples.starts.resize(starts_.defined() ? samples.tokens.size() : 0);
  const uint64_t step_begin = static_cast<uint64_t>((step + skipped_batches_) * config_.train.global_batch);
  const size_t count = static_cast<size_t>(tokens_.dim(1));
  for (size_t index = 0; index < first_samples_.size(); ++index) {
    const auto part = [&](std::vector<int32_t>& all) {
      return all.empty() ? std::span<int32_t>() : std::span(all).subspan(index * count, count);
    };
    batches_.train(step_begin + first_samples_[index],
                   {part(samples.tokens), part(samples.targets), part(samples.starts)});
  }
  samples.step = step;
  return samples;
}

int64_t StepWork::count_global_targets() const {
  // There is nothing to ask the other ranks.
  if (batches_.all_targets_counted()) return config_.train.global_batch * config_.model.context;
  const int64_t mine = count_targets(samples_[static_cast<size_t>(step_) % samples_.size()].targets);
  int64_t all = 0;
  for (const int64_t tokens : all_gather_records(communicator_, mine)) all += tokens;
  return all;
}

void StepWork::set_loss_gradient(double factor, int64_t tokens) {
  const double value = factor / static_cast<double>(tokens);
  const auto narrow = static_cast<float>(value), narrow_factor = static_cast<float>(factor);
  runtime_.backend->upload(&narrow_factor, factor_, *runtime_.stream);
  const bool is_narrow = loss_gradient_.dtype() == DType::kF32;
  runtime_.backend->upload(is_narrow ? static_cast<const void*>(&narrow) : &value, loss_gradient_, *runtime_.stream);
}

void StepWork::run(const PassOptions& passes) {
  runtime_.parameters.forget_gradients();
  for (size_t index = 0; index < first_samples_.size(); ++index) {
    TapeOptions options = tape_options(index);
    options.observer = index == 0 ? passes.observer : nullptr;
    if (passes.after_op) options.after_op = passes.after_op;
    const int64_t of_lane = static_cast<int64_t>(index) % micro_batches_;
    const bool is_first_lane = static_cast<int64_t>(index) < micro_batches_;
    const bool is_last = index + 1 == first_samples_.size();
    if (of_lane == 0 && !is_first_lane) reducer_.next_lane();
    if (of_lane + 1 == micro_batches_) {  // the gradients of the lane are complete: reduce them as they land
      options.gradient_ready = [this, is_last](Parameter& parameter) {
        if (is_last) faults_.on_gradient(step_, parameter);
        reducer_.ready(parameter);
      };
      options.between_nodes = [this] { reducer_.progress(); };
    }
    Tape tape = runtime_.make_tape(std::move(options), passes.policy);
    const LossOutput output = forward(tape, index);
    runtime_.backend->copy(output.sum.value, losses_.slice(static_cast<int64_t>(index), 1), *runtime_.stream);
    if (of_lane + 1 == micro_batches_ && is_first_lane) {
      optimizer_.await_weights();  // also weights that no pass reads: ranks must start collectives alike
      reducer_.begin(step_number_, factor_);
    }
    const Range range(RangeKind::kPhase, "backward");
    tape.backward(output.sum);
  }
  faults_.require_injected(step_);
  {
    const Range range(RangeKind::kPhase, "reduce");
    reducer_.finish();
  }
  runtime_.arena->rewind();
}

LossOutput StepWork::forward(Tape& tape, size_t micro_batch) {
  const Range range(RangeKind::kPhase, "forward");
  return runtime_.model->loss(tape, part_of(tokens_, micro_batch), part_of(targets_, micro_batch),
                              config_.model.context);
}

TapeOptions StepWork::tape_options(size_t micro_batch) const {
  return {.random = {.seed = config_.train.seed,
                     .step = step_number_,
                     .first_sample = first_samples_[micro_batch],
                     .samples = config_.train.micro_batch},
          .document_starts = starts_.defined() ? part_of(starts_, micro_batch) : Tensor(),
          .loss_gradient = loss_gradient_,
          .recompute = config_.train.recompute,
          .keeps_packed = config_.train.keeps_packed_weights(communicator_.size()),
          .after_op = faults_.on_op(step_, Pass::kForward),
          .after_backward = faults_.on_op(step_, Pass::kBackward)};
}

ExactSum StepWork::loss_again(const PrecisionPolicy* policy) {
  ExactSum sum;
  for (size_t index = 0; index < first_samples_.size(); ++index) {
    Tape tape = runtime_.make_tape(tape_options(index), policy);
    sum.add(runtime_.backend->read_number(forward(tape, index).sum.value, *runtime_.stream));
  }
  runtime_.delayed_scales->forget_records();
  return sum;
}

double StepWork::sum_of_squared_norms() {
  Backend& backend = *runtime_.backend;
  Stream& stream = *runtime_.stream;
  ExactSum mine;
  for (size_t index = 0; index < first_samples_.size(); ++index) {
    const Tensor record = backend.make_stats(stream);
    runtime_.parameters.forget_gradients();
    {
      Tape tape = runtime_.make_tape(tape_options(index));
      tape.backward(forward(tape, index).sum);
    }
    runtime_.arena->rewind();
    for (int i = 0; i < runtime_.parameters.size(); ++i) {
      const Parameter& parameter = runtime_.parameters[i];
      if (parameter.gradient_written) backend.run(TensorStatsArgs{.x = parameter.gradient, .record = record}, stream);
    }
    mine.add(backend.read_stats(record, stream).sum_squares);
  }
  runtime_.delayed_scales->forget_records();
  ExactSum all;
  for (const ExactSum& sum : all_gather_records(communicator_, mine)) all += sum;
  return all.value();
}

std::optional<FoundOp> StepWork::find_culprit(Pass pass) {
  std::vector<std::string> mine;  // the text and the layers of the op that this rank has found
  if (const std::optional<FoundOp> own = find_own_culprit(pass)) {
    mine = {own->text};
    mine.insert(mine.end(), own->stored_by.begin(), own->stored_by.end());
  }
  const auto all = all_gather_text_lists(communicator_, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return FoundOp{fmt::format("{} on rank {}", all[rank][0], rank), {all[rank].begin() + 1, all[rank].end()}};
  }
  return std::nullopt;
}

std::optional<FoundOp> StepWork::find_own_culprit(Pass pass) {
  for (size_t index = 0; index < first_samples_.size(); ++index) {
    TapeOptions options = tape_options(index);
    options.check_outputs = true;
    Tape tape = runtime_.make_tape(std::move(options));
    forward(tape, index);
    if (const auto& bad = tape.first_non_finite()) return found_op(*bad, index);
  }
  if (pass == Pass::kForward) return std::nullopt;
  for (size_t index = 0; index < first_samples_.size(); ++index) {
    if (static_cast<int64_t>(index) % micro_batches_ == 0) runtime_.parameters.forget_gradients();
    TapeOptions options = tape_options(index);
    options.check_gradients = true;
    if (index + 1 == first_samples_.size()) {
      options.gradient_ready = [this](Parameter& parameter) { faults_.on_gradient(step_, parameter); };
    }
    Tape tape = runtime_.make_tape(std::move(options));
    tape.backward(forward(tape, index).sum);
    if (const auto& bad = tape.first_non_finite()) return found_op(*bad, index);
  }
  return std::nullopt;
}

}  // namespace mantissa
