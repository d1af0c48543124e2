#include "tools/run/guard/fault_injection.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <limits>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/quant/coded_rows.h"
#include "tools/run/guard/black_box.h"

namespace mantissa {

// Informs a FaultInjection of collectives before they begin.
class FaultyCommunicator final : public ForwardingCommunicator {
  using Base = ForwardingCommunicator;

 public:
  FaultyCommunicator(Communicator& inner, FaultInjection& faults) : Base(inner), faults_(faults) {}
  FaultyCommunicator(std::unique_ptr<Communicator> group, FaultInjection& faults)
      : Base(std::move(group)), faults_(faults) {}

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    faults_.before_collective();
    faults_.before_exchange(send, stream);
    return Base::all_to_all(send, recv, stream);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    faults_.before_collective();
    return Base::all_gather(send, recv, stream);
  }
  std::unique_ptr<Work> node_barrier(Stream& stream) override {
    faults_.before_collective();
    faults_.before_exchange({}, stream);
    return Base::node_barrier(stream);
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    faults_.before_collective();
    return Base::all_gather_bytes(mine);
  }
  void barrier() override {
    faults_.before_collective();
    Base::barrier();
  }
  std::unique_ptr<Communicator> split(int color, int members) override {
    return std::make_unique<FaultyCommunicator>(Base::split(color, members), faults_);
  }

 private:
  FaultInjection& faults_;
};

namespace {

void flip_byte_of_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return;
  const off_t middle = ::lseek(descriptor, 0, SEEK_END) / 2;
  unsigned char byte = 0;
  if (::pread(descriptor, &byte, 1, middle) == 1) {
    byte ^= 0x10U;
    if (::pwrite(descriptor, &byte, 1, middle) != 1) log_warn("test: cannot write to {}", path);
  }
  ::close(descriptor);
}

FileOperation operation_of(const PlannedFault& fault) {
  if (fault.kind == FaultKind::kShortWrite || fault.kind == FaultKind::kNoSpace) return FileOperation::kWrite;
  if (fault.kind == FaultKind::kCorrupt) return FileOperation::kClose;
  return fault.kind == FaultKind::kReadError ? FileOperation::kRead : fault.operation;
}

void strike_process(const PlannedFault& plan) {
  flush_log();
  switch (plan.kind) {
    case FaultKind::kSleep:
      std::this_thread::sleep_for(std::chrono::duration<double>(plan.seconds));
      break;
    case FaultKind::kStop:
      raise(SIGSTOP);
      break;
    case FaultKind::kKill:
      raise(SIGKILL);
      break;
    case FaultKind::kExit:
      _exit(plan.code);
    case FaultKind::kDeadlock:
      while (true) pause();  // a signal ends one
    default:
      break;
  }
}

}  // namespace

FaultInjection::~FaultInjection() {
  if (sees_ranges_) set_range_sink(sink_before_);
  if (sees_files_) set_file_fault_injector(injector_before_);
}

Communicator& FaultInjection::wrap(Communicator& inner) {
  rank_ = inner.rank();
  if (config_.test.faults.empty() && config_.test.random.count == 0) return inner;
  communicator_ = std::make_unique<FaultyCommunicator>(inner, *this);
  return *communicator_;
}

void FaultInjection::attach(ShardedState& state) {
  state_ = &state;
  for (PlannedFault& fault : plan_faults(config_, state)) {
    if (fault.rank != rank_) continue;
    StruckFaults::Fault& struck = struck_->by_name[fault.name];
    faults_.push_back({.plan = std::move(fault), .struck = &struck});
  }
  if (!state.backend.computes()) faults_.clear();
  sees_ranges_ = std::ranges::any_of(faults_, [](const Own& one) { return one.plan.phase != "none"; });
  sees_files_ = std::ranges::any_of(faults_, [](const Own& one) { return one.plan.is_of_files(); });
  if (sees_ranges_) sink_before_ = set_range_sink(this);
  if (sees_files_) injector_before_ = set_file_fault_injector(this);
}

void FaultInjection::note(Own& fault) {
  if (std::exchange(fault.struck->is_noted, true)) return;
  if (BlackBox* const box = BlackBox::current()) box->note(BlackBoxEvent::Kind::kFault, fault.plan.name);
  log_warn("{}: {}", fault.plan.name, describe(fault.plan));
}

// ---- Values.

void FaultInjection::change(Own& fault, const Tensor& element, Stream& stream) {
  using Limits = std::numeric_limits<float>;
  Backend& backend = state_->backend;
  note(fault);
  if (fault.plan.kind != FaultKind::kFlip) {
    backend.fill(element, fault.plan.kind == FaultKind::kInf ? Limits::infinity() : Limits::quiet_NaN(), stream);
    return;
  }
  fault.struck->is_done = true;
  std::array<unsigned char, sizeof(double)> bytes{};
  backend.download(element, bytes.data(), stream);
  const auto bit = static_cast<unsigned>(fault.plan.bit);
  bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << bit % 8));
  backend.upload(bytes.data(), element, stream);
}

void FaultInjection::on_gradient(int64_t step, const Parameter& parameter) {
  for (Own& fault : faults_) {
    const PlannedFault& plan = fault.plan;
    if (plan.step != step + 1 || plan.target != FaultTarget::kGradient || plan.parameter != parameter.name) continue;
    // Passes that calibrate run before their step begins, and their gradients are dropped.
    const bool strikes = plan.kind != FaultKind::kFlip || is_current(fault);
    if (plan.changes_value() && strikes) change(fault, parameter.gradient.slice(plan.element, 1), state_->stream);
  }
}

void FaultInjection::change_state(Own& fault) {
  const PlannedFault& plan = fault.plan;
  fault.struck->is_done = true;
  if (plan.target == FaultTarget::kWeight) {
    return change(fault, state_->parameters().find(plan.parameter)->weight.slice(plan.element, 1), state_->stream);
  }
  for (const StatePiece& piece : state_->optimizer.pieces()) {
    const bool holds = piece.parameter->name == plan.parameter && plan.element >= piece.begin &&
                       plan.element < piece.begin + piece.count;
    if (!holds) continue;
    const Tensor& tensor = plan.target == FaultTarget::kMaster        ? piece.master
                           : plan.target == FaultTarget::kFirstMoment ? piece.m
                                                                      : piece.v;
    change(fault, tensor.slice(plan.element - piece.begin, 1), state_->stream);
  }
}

void FaultInjection::before_exchange(const Tensor& sent, Stream& stream) {
  if (state_ == nullptr) return;  // while the session is made
  const BucketLayout& layout = state_->buckets.layout();
  for (Own& fault : faults_) {
    const PlannedFault& plan = fault.plan;
    if (!plan.changes_value() || plan.target != FaultTarget::kWire || !is_current(fault)) continue;
    const Parameter& parameter = *state_->parameters().find(plan.parameter);
    const int bucket = layout.bucket_of(parameter.index);
    // Buckets start in order: the newest one is about to leave.
    const bool leaves = state_->reducer.started() == bucket + 1 && state_->reducer.completed() <= bucket;
    if (!leaves) continue;
    if (!sent.defined()) {
      change(fault, parameter.gradient.slice(plan.element, 1), stream);
    } else if (const int64_t part = layout.bucket(bucket).numel / sent.dim(0);  // of each receiver
               sent.dim(1) == row_items(sent.dtype(), part)) {
      const int64_t offset = layout.flat_index(parameter.index, plan.element) - layout.bucket(bucket).flat_begin;
      change(fault, sent.rows(offset / part, 1).view({sent.dim(1)}).slice(offset % part, 1), stream);
    }
    fault.struck->is_done = fault.struck->is_done || fault.struck->is_noted;
  }
}

OpHook FaultInjection::on_op(int64_t step, Pass pass) {
  const auto strikes = [&](const ActivationInjection& fault) { return fault.pass == pass && due(fault, step); };
  if (std::ranges::none_of(config_.test.activations, strikes)) return nullptr;
  return [this, step, pass](std::string_view layer, std::string_view op, Tensor& made) {
    using Limits = std::numeric_limits<float>;
    for (const ActivationInjection& fault : config_.test.activations) {
      if (fault.pass != pass || !due(fault, step) || layer != fault.layer || op != name(fault.op)) continue;
      const float value = fault.value == InjectedValue::kInf ? Limits::infinity() : Limits::quiet_NaN();
      state_->backend.fill(made.slice(0, 1), value, state_->stream);
      injected_.insert(&fault);
    }
  };
}

void FaultInjection::require_injected(int64_t step) const {
  for (const ActivationInjection& fault : config_.test.activations) {
    if (!due(fault, step) || injected_.contains(&fault)) continue;
    throw ConfigError("test.activations[{}].layer: no op {} ran in a layer '{}' in step {}",
                      &fault - config_.test.activations.data(), name(fault.op), fault.layer, step + 1);
  }
}

bool FaultInjection::due(const ActivationInjection& fault, int64_t step) const {
  return fault.step == step + 1 && fault.rank == rank_;
}

// ---- Processes.

void FaultInjection::strike_if_here(Own& fault, std::string_view phase) {
  const PlannedFault& plan = fault.plan;
  const bool is_elsewhere =
      plan.phase != phase || plan.changes_value() || plan.is_of_files() || plan.kind == FaultKind::kDeadlock;
  if (is_elsewhere || step_ < plan.step || step_ >= plan.step + plan.steps) return;
  // A phase may begin several times in a step.
  const bool has_struck =
      plan.kind == FaultKind::kSleep ? fault.struck->struck_in >= step_ : fault.struck->struck_in > 0;
  if (has_struck) return;
  fault.struck->struck_in = step_;
  note(fault);
  strike_process(plan);
}

void FaultInjection::begin_step(int64_t step) {
  // Weights that arrive would undo a change, or be sent half changed. Ranks without a fault have to wait with the
  // others.
  if (communicator_ != nullptr) state_->optimizer.await_weights();
  if (faults_.empty()) return;
  step_ = step + 1;
  if (struck_->first_step == 0) struck_->first_step = step_;
  require_struck(false);
  for (Own& fault : faults_) {
    const PlannedFault& plan = fault.plan;
    const bool is_stored = plan.target != FaultTarget::kGradient && plan.target != FaultTarget::kWire;
    if (plan.changes_value() && is_stored && is_current(fault)) change_state(fault);
    strike_if_here(fault, "none");
  }
}

void FaultInjection::begin(RangeKind kind, const char* name) {
  if (sink_before_ != nullptr) sink_before_->begin(kind, name);
  if (kind != RangeKind::kPhase || std::this_thread::get_id() != owner_) return;
  phase_ = name;
  for (Own& fault : faults_) strike_if_here(fault, name);
}

void FaultInjection::end(RangeKind kind, const char* name) {
  if (kind == RangeKind::kPhase && std::this_thread::get_id() == owner_) phase_ = "none";
  if (sink_before_ != nullptr) sink_before_->end(kind, name);
}

void FaultInjection::before_collective() {
  for (Own& fault : faults_) {
    const PlannedFault& plan = fault.plan;
    if (plan.kind != FaultKind::kDeadlock || !is_current(fault)) continue;
    if (plan.phase != "none" && plan.phase != phase_.load()) continue;
    fault.struck->is_done = true;
    note(fault);
    strike_process(plan);
  }
}

// ---- Files.

bool FaultInjection::fits(const Own& fault, FileOperation operation, const std::string& path) const {
  const PlannedFault& plan = fault.plan;
  return !fault.struck->is_done && plan.is_of_files() && step_ >= plan.step && operation == operation_of(plan) &&
         path.find(plan.file) != std::string::npos && (plan.phase == "none" || plan.phase == phase_.load());
}

int FaultInjection::before(FileOperation operation, const std::string& path, size_t& bytes) {
  for (Own& fault : faults_) {
    {
      // Not while it strikes: other threads' files are not slow.
      const std::lock_guard lock(files_mutex_);
      if (!fits(fault, operation, path)) continue;
      fault.struck->is_done = true;
      note(fault);
    }
    switch (fault.plan.kind) {
      case FaultKind::kShortWrite:
        bytes = std::max<size_t>(1, bytes / 2);
        break;
      case FaultKind::kNoSpace:
        return ENOSPC;
      case FaultKind::kReadError:
        return EIO;
      case FaultKind::kCorrupt:
        flip_byte_of_file(path);
        break;
      default:
        strike_process(fault.plan);
    }
  }
  return 0;
}

// ---- Faults that found no place.

void FaultInjection::require_struck(bool at_end) const {
  const std::lock_guard lock(files_mutex_);
  for (const Own& fault : faults_) {
    const PlannedFault& plan = fault.plan;
    // A start may continue after the step of a fault, or stop before it.
    const bool has_had_its_chance =
        plan.step <= step_ &&
        (plan.is_of_files() ? at_end : plan.step >= struck_->first_step && (at_end || plan.step < step_));
    if (!has_had_its_chance || fault.struck->is_noted) continue;
    if (plan.is_of_files()) {
      throw ConfigError("{}.file: from step {} on, no file with '{}' in its path was where it strikes", plan.name,
                        plan.step, plan.file);
    }
    if (plan.phase != "none") {
      throw ConfigError("{}.phase: step {} had no phase {}{}", plan.name, plan.step, plan.phase,
                        plan.kind == FaultKind::kDeadlock ? " with a collective" : "");
    }
    throw ConfigError("{}.step: nothing to strike in step {}: {}", plan.name, plan.step, describe(plan));
  }
}

}  // namespace mantissa
